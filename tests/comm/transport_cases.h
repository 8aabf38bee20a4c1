// Test cases for every transport. All ranks call each function.
#pragma once

#include "comm/transport.h"

namespace lpsgd::transport_cases {

void messages_match_by_tag_in_order(Transport& transport);
void messages_of_many_sizes(Transport& transport);
void many_messages_reuse_requests(Transport& transport);
void allreduce_sums(Transport& transport);
void collectives(Transport& transport);
void bytes_are_counted(Transport& transport);

}  // namespace lpsgd::transport_cases
