// The main of MPI test programs. Every rank runs every case; rank 0 prints progress, the others only what
// fails. The exit status is the worst of all ranks. A fatal failure on one rank ends the job, because the
// others would wait for it for ever.
#include "tests/mpi_main.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

namespace lpsgd {
namespace {

std::unique_ptr<Transport> transport;

class RankListener final : public testing::EmptyTestEventListener {
  // Kept here: GoogleTest holds the lock of current_test_info() while it reports a part's result.
  void OnTestStart(const testing::TestInfo& test) override {
    test_ = fmt::format("{}.{}", test.test_suite_name(), test.name());
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    if (world().rank() != 0) {
      fmt::print(stderr, "rank {}: {}: {}:{}: {}\n", world().rank(), test_,
                 result.file_name() ? result.file_name() : "?", result.line_number(), result.message());
    }
    std::fflush(nullptr);
    if (result.fatally_failed() && world().size() > 1) world().abort(1);
  }

  std::string test_ = "?";
};

}  // namespace

Transport& world() {
  return *transport;
}

}  // namespace lpsgd

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  lpsgd::transport = lpsgd::make_mpi_transport();
  auto& listeners = testing::UnitTest::GetInstance()->listeners();
  if (lpsgd::world().rank() != 0) delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new lpsgd::RankListener);  // GoogleTest owns it
  const double mine = RUN_ALL_TESTS();
  const auto all = lpsgd::world().all_gather(mine);
  const int status = static_cast<int>(*std::max_element(all.begin(), all.end()));
  lpsgd::set_mpi_exit_status(status);
  lpsgd::transport.reset();
  return status;
}
