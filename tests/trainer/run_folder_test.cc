// What a run's folder records is read back.
#include "trainer/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/comm/captured_log.h"
#include "tests/core/temporary_folder.h"
#include "trainer/json_text.h"

namespace lpsgd {
namespace {

class RunFolders : public TemporaryFolder {
 protected:
  void record(const std::vector<std::string>& classes) const {
    write("environment.json", json_text({{"name", "recorded"}, {"classes", classes}}, 2));
  }
  std::string warning(const std::vector<std::string>& classes) const {
    const CapturedLog log;
    warn_of_other_classes(folder_.string(), classes);
    return log.text();
  }
};

TEST_F(RunFolders, NamesOfManyClassesAreRead) {
  std::vector<std::string> classes;
  for (int i = 0; i < 120'000; ++i) classes.push_back(fmt::format("a class with number {}", i));
  record(classes);
  EXPECT_EQ(recorded_classes(folder_.string()), classes);
  write("config.yaml", R"(
network: {input: [8, 8, 3], classes: 10, layers: [flatten, {dense: fc, units: 10}]}
data: {dataset: shapes}
)");
  const CapturedLog log;
  EXPECT_EQ(load_run_config(path("config.yaml"), {}, config::Environment::expand).name, "recorded");
  EXPECT_EQ(log.text(), "");
}

TEST_F(RunFolders, OtherNamesOfClassesAreTold) {
  record({"cat", "dog", "eel"});
  EXPECT_EQ(warning({"cat", "dog", "eel"}), "");
  EXPECT_EQ(warning({}), "");
  EXPECT_THAT(warning({"cat", "dragon", "eel"}),
              testing::HasSubstr("class 1 is 'dog' in the run but 'dragon' in this data"));
}

TEST_F(RunFolders, NamesThatAreNotUtf8AreRecordedOtherwise) {
  const std::vector<std::string> latin1{"caf\xe9", "na\xefve", "\xff\xfe"};
  record(latin1);
  EXPECT_NE(recorded_classes(folder_.string()), latin1);
  EXPECT_EQ(warning(latin1), "");
  EXPECT_THAT(warning({"caf\xe9", "other", "\xff\xfe"}), testing::HasSubstr("but 'other' in this data"));
}

}  // namespace
}  // namespace lpsgd
