// Text from files and command lines, made safe for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace lpsgd {

/// The text with every control character, and every byte that is not UTF-8, as \xNN. A terminal would act on
/// the former: move its cursor, change its title, hide what was printed before.
std::string printable(std::string_view text);

/// The same, but line ends stay: for a message of several lines.
std::string printable_lines(std::string_view text);

/// The first byte that does not continue UTF-8 text, or the text's size. Overlong forms, surrogates and
/// numbers beyond Unicode's last are not UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

}  // namespace lpsgd
