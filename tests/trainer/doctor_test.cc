#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <fstream>
#include <future>
#include <thread>

#include "core/clock.h"
#include "core/error.h"
#include "trainer/doctor/check.h"
#include "trainer/doctor/checks.h"
#include "trainer/doctor/child_process.h"
#include "trainer/doctor/system_files.h"

namespace lpsgd::doctor {
namespace {

TEST(Doctor, CodeForAGpu) {
  EXPECT_TRUE(has_code("75-real 90-real", 7, 5));
  EXPECT_TRUE(has_code("75-real 90-real", 9, 0));
  EXPECT_TRUE(has_code("80-real", 8, 9)) << "code for 8.0 runs on 8.9";
  EXPECT_FALSE(has_code("89-real", 8, 0));
  EXPECT_FALSE(has_code("75-real 90-real", 8, 6));
  EXPECT_FALSE(has_code("75-real 90-real", 10, 0));
  EXPECT_TRUE(has_code("75-real 80-real 90", 12, 0)) << "PTX";
  EXPECT_TRUE(has_code("75-virtual", 8, 6)) << "PTX";
  EXPECT_FALSE(has_code("90", 8, 0));
  EXPECT_TRUE(has_code("90a-real", 9, 0));
  EXPECT_FALSE(has_code("90a", 10, 0)) << "9.0 alone";
  EXPECT_TRUE(has_code("120-real", 12, 0));
  for (const char* words : {"", "native", "all-major"}) EXPECT_TRUE(has_code(words, 8, 6)) << words;
}

TEST(Doctor, WhoseLauncher) {
  EXPECT_EQ(mpi_family("HYDRA build details:\n    Version:  4.0.2\n"), "MPICH");
  EXPECT_EQ(mpi_family("MPICH Version:\t4.0.2"), "MPICH");
  EXPECT_EQ(mpi_family("Intel(R) MPI Library for Linux* OS, Version 2021.9"), "MPICH");
  EXPECT_EQ(mpi_family("mpirun (Open MPI) 4.1.4"), "Open MPI");
  EXPECT_EQ(mpi_family("mpirun.openmpi (OpenRTE) 4.1.4"), "Open MPI");
  EXPECT_EQ(mpi_family("Open MPI v5.0.3"), "Open MPI");
  EXPECT_EQ(mpi_family("jsrun 10.4"), "");
}

TEST(Doctor, ListsOfTheKernel) {
  EXPECT_EQ(count_of_list("0-3,8"), 5);
  EXPECT_EQ(count_of_list("7"), 1);
  EXPECT_EQ(count_of_list(""), 0);
  EXPECT_EQ(count_of_list("3-1"), 0);
  EXPECT_EQ(count_of_list("max"), 0);
}

TEST(Doctor, Units) {
  EXPECT_EQ(bytes_text(64.0 * 1024 * 1024), "64 MiB");
  EXPECT_EQ(bytes_text(1.5 * 1024 * 1024 * 1024), "1.5 GiB");
  EXPECT_EQ(bytes_text(12), "12 bytes");
  EXPECT_EQ(seconds_text(3.4e-7), "340 ns");
  EXPECT_EQ(seconds_text(1.23e-6), "1.2 us");
  EXPECT_EQ(seconds_text(0.015), "15 ms");
  EXPECT_EQ(rate_text(5.24e9), "5.2 GB/s");
  EXPECT_EQ(rate_text(117e6), "117 MB/s");
}

TEST(Doctor, AStepThatFailsOrHangsIsAnError) {
  const Checks failed = run_step({"files.runs", 5, []() -> Checks { throw FileError("no such disk"); }});
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].name, "files.runs");
  EXPECT_EQ(failed[0].status, Status::error);
  EXPECT_NE(failed[0].found.find("no such disk"), std::string::npos);
  EXPECT_FALSE(failed[0].advice.empty());
  EXPECT_FALSE(is_stuck());

  std::promise<void> answer;
  const std::shared_future<void> answered = answer.get_future().share();
  const double begin = now_seconds();
  const Checks hung = run_step({"gpu.driver", 0.2, [answered] {
                                  answered.wait();
                                  return Checks{};
                                }});
  EXPECT_LT(now_seconds() - begin, 5);
  answer.set_value();
  ASSERT_EQ(hung.size(), 1u);
  EXPECT_EQ(hung[0].name, "gpu.driver");
  EXPECT_EQ(hung[0].status, Status::error);
  EXPECT_TRUE(is_stuck());
}

TEST(Doctor, AsJsonAndBack) {
  Check check{"files.cache", Status::warning, "found", "advice"};
  check.values = {{"free_bytes", 7}};
  check.host = "node2";
  const Check back = check_from_json(to_json(check));
  EXPECT_EQ(back.name, check.name);
  EXPECT_EQ(back.status, check.status);
  EXPECT_EQ(back.found, check.found);
  EXPECT_EQ(back.advice, check.advice);
  EXPECT_EQ(back.host, check.host);
  EXPECT_EQ(back.values, check.values);
  for (const char* text : {"[]", "7", "{}", R"({"name": "a", "status": "fine"})", R"({"status": 1})"})
    EXPECT_THROW(check_from_json(nlohmann::ordered_json::parse(text)), FileError) << text;
}

TEST(Doctor, AChildThatEnds) {
  const ChildResult child = run_child({"sh", "-c", "echo out; echo \"$A\" >&2; exit 3"}, 20, {"A=err"});
  EXPECT_EQ(child.start_error, "");
  EXPECT_FALSE(child.timed_out);
  EXPECT_EQ(child.status, 3);
  EXPECT_EQ(child.out, "out\n");
  EXPECT_EQ(child.err, "err\n");
  EXPECT_EQ(run_child({"sh", "-c", "kill -9 $$"}, 20).status, 128 + 9);
  EXPECT_NE(run_child({"/no/such/program"}, 20).start_error, "");
}

/// Whether a process runs: it may have ended without having been waited for.
bool runs(const std::string& pid) {
  std::ifstream in("/proc/" + pid + "/stat");
  std::string stat;
  std::getline(in, stat);
  const std::size_t end = stat.rfind(')');
  return end != std::string::npos && stat.compare(end, 3, ") Z") != 0;
}

TEST(Doctor, AChildThatHangsIsEndedWithAllItStarted) {
  for (const char* first : {"", "trap '' TERM; ", "setsid "}) {
    const ChildResult child =
        run_child({"sh", "-c", std::string(first) + "sleep 300 & echo $!; sleep 300"}, 0.5);
    EXPECT_TRUE(child.timed_out);
    EXPECT_LT(child.seconds, 10);
    const std::string pid = child.out.substr(0, child.out.find('\n'));
    for (int i = 0; i < 100 && runs(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(runs(pid)) << first;
  }
}

TEST(Doctor, AChildThatWritesWithoutEnd) {
  const ChildResult child = run_child({"sh", "-c", "yes"}, 0.5);
  EXPECT_TRUE(child.timed_out);
  EXPECT_EQ(child.out.size(), std::size_t{1} << 20);
}

TEST(Doctor, AChildHasNotTheVariablesOfARank) {
  ::setenv("PMI_RANK", "1", 1);
  const ChildResult child = run_child({"sh", "-c", "echo \"[$PMI_RANK]\""}, 20);
  ::unsetenv("PMI_RANK");
  EXPECT_EQ(child.out, "[]\n");
}

RankPlace place(const std::string& host, int gpu, std::vector<int> cores, int threads = 1, int machine = 4) {
  RankPlace rank{host, "cpu", "", 2, threads, std::move(cores), machine};
  if (gpu >= 0) {
    rank.device = "cuda:" + std::to_string(gpu);
    rank.bus = "0000:0" + std::to_string(gpu);
  }
  return rank;
}

Check find(const std::vector<RankPlace>& ranks, const std::string& name, bool binds = false) {
  for (const Check& check : place_checks(ranks, false, binds))
    if (check.name == name) return check;
  return {};
}

TEST(Doctor, RanksOfTwoMachines) {
  const std::vector<RankPlace> ranks{place("a", 0, {0, 1, 2, 3}, 2), place("b", 0, {0, 1, 2, 3}, 4),
                                     place("a", 1, {0, 1, 2, 3}, 2)};
  const Check started = find(ranks, "ranks.started");
  EXPECT_EQ(started.found, "3 ranks of this build on 2 machines: 2 on a; 1 on b");
  EXPECT_EQ(started.values["ranks"], 3);
  EXPECT_EQ(find(ranks, "ranks.devices").status, Status::ok) << find(ranks, "ranks.devices").found;
  EXPECT_EQ(find(ranks, "ranks.cores").status, Status::ok);
}

TEST(Doctor, RanksThatShareAGpuOrHaveNone) {
  const Check shared =
      find({place("a", 0, {0, 1}), place("b", 0, {0}), place("a", 0, {0, 1})}, "ranks.devices");
  EXPECT_EQ(shared.status, Status::warning);
  EXPECT_NE(shared.found.find("ranks 0, 2 are on the same GPU of a"), std::string::npos) << shared.found;
  EXPECT_FALSE(shared.advice.empty());
  const Check without = find({place("a", 0, {0}), place("b", -1, {0})}, "ranks.devices");
  EXPECT_EQ(without.status, Status::warning);
  EXPECT_NE(without.found.find("rank 1 on b"), std::string::npos) << without.found;
  EXPECT_EQ(find({place("a", -1, {0}), place("b", -1, {0})}, "ranks.devices").status, Status::absent);
}

TEST(Doctor, MoreThreadsThanCores) {
  const Check crowded = find({place("a", -1, {0}), place("a", -1, {0}), place("b", -1, {0})}, "ranks.cores");
  EXPECT_EQ(crowded.status, Status::warning);
  EXPECT_NE(crowded.found.find("2 ranks with 2 threads in all on 1 core of a"), std::string::npos)
      << crowded.found;
  EXPECT_EQ(crowded.found.find("of b"), std::string::npos) << crowded.found;
}

TEST(Doctor, ALauncherThatBindsLeavesCoresIdle) {
  const std::vector<RankPlace> ranks{place("a", -1, {0}), place("a", -1, {1})};
  const Check bound = find(ranks, "ranks.cores", true);
  EXPECT_EQ(bound.status, Status::warning);
  EXPECT_NE(bound.found.find("2 of the 4 cores of a"), std::string::npos) << bound.found;
  EXPECT_EQ(find(ranks, "ranks.cores", false).status, Status::ok) << "a scheduler may have given no more";
}

}  // namespace
}  // namespace lpsgd::doctor
