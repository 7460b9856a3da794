#include "runtime/timeline.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace horoscale {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class TimelineTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_NE(mkdtemp(directory_), nullptr); }
  void TearDown() override {
    unlink(Path().c_str());
    unlink((Path() + ".rank2").c_str());
    rmdir(directory_);
  }
  std::string Path() const { return std::string(directory_) + "/trace.json"; }

  char directory_[32] = "/tmp/horoscale_XXXXXX";
};

OperationPtr DoneOperation(const std::string& name) {
  auto operation = std::make_shared<Operation>();
  operation->request.name = name;
  operation->request.signature.tensors = {{DataType::kFloat32, {8}}};
  operation->enqueued_at = 1.0;
  operation->planned_at = 1.5;
  operation->started_at = 1.75;
  return operation;
}

TEST_F(TimelineTest, HasThePhasesOfEachTensor) {
  Timeline timeline(0);
  ASSERT_TRUE(timeline.Start(Path(), false).ok());
  timeline.OnOperationDone(*DoneOperation("layer\"1\""), 2.0);
  ASSERT_TRUE(timeline.Stop().ok());
  const std::string text = ReadFile(Path());
  EXPECT_EQ(text.front(), '[');
  EXPECT_EQ(text.substr(text.size() - 2), "]\n");
  for (const char* part : {"\"NEGOTIATE\"", "\"QUEUE\"", "\"allreduce\"", "set 0: layer\\\"1\\\"",
                           "\"ts\": 1500000.000, \"dur\": 250000.000", "\"bytes\": 32"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
  }
}

TEST_F(TimelineTest, TellsWhenTheProgramWaited) {
  Timeline timeline(0);
  ASSERT_TRUE(timeline.Start(Path(), false).ok());
  timeline.OnWaited(*DoneOperation("x"), 2.0, 2.0);  // it was already done
  timeline.OnWaited(*DoneOperation("x"), 2.0, 2.5);
  ASSERT_TRUE(timeline.Stop().ok());
  const std::string text = ReadFile(Path());
  EXPECT_EQ(text.find("\"WAIT\""), text.rfind("\"WAIT\""));
  for (const char* part : {"\"the program\"", "\"for\": \"set 0: x\"",
                           "\"ts\": 2000000.000, \"dur\": 500000.000, \"name\": \"WAIT\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
  }
}

TEST_F(TimelineTest, TellsTheBucketOfEachTensor) {
  Timeline timeline(0);
  ASSERT_TRUE(timeline.Start(Path(), false).ok());
  const OperationPtr operation = DoneOperation("x");
  operation->plan_entry = 17;
  operation->bucket_tensors = 5;
  timeline.OnOperationDone(*operation, 2.0);
  Action action;
  action.sequence = 17;
  action.pieces.resize(5);
  timeline.OnBucketDone(0, action, 1.75, 2.0);
  ASSERT_TRUE(timeline.Stop().ok());
  const std::string text = ReadFile(Path());
  for (const char* part : {"\"entry\": 17, \"bucket_tensors\": 5", "\"FUSED\""}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
  }
}

TEST_F(TimelineTest, AnAbruptEndLeavesWholeEventsWithoutTheBracket) {
  Timeline timeline(0);
  ASSERT_TRUE(timeline.Start(Path(), false).ok());
  for (int i = 0; i < 100; ++i) timeline.OnOperationDone(*DoneOperation("x"), 2.0);
  EXPECT_EQ(ReadFile(Path()), "");
  timeline.Flush();
  EXPECT_EQ(ReadFile(Path()).substr(0, 3), "[\n{");
  EXPECT_EQ(ReadFile(Path()).back(), '}');
}

TEST_F(TimelineTest, OtherRanksWriteFilesOfTheirOwn) {
  Timeline timeline(2);
  ASSERT_TRUE(timeline.Start(Path(), false).ok());
  ASSERT_TRUE(timeline.Stop().ok());
  EXPECT_NE(ReadFile(Path() + ".rank2").find("rank 2"), std::string::npos);
}

TEST_F(TimelineTest, APathThatCannotBeOpenedIsAnError) {
  Timeline timeline(0);
  const Status status = timeline.Start(std::string(directory_) + "/no/such/file", false);
  EXPECT_EQ(status.code(), StatusCode::kSystem);
  EXPECT_FALSE(timeline.enabled());
  timeline.OnOperationDone(*DoneOperation("x"), 2.0);  // is ignored
  EXPECT_TRUE(timeline.Stop().ok());
}

}  // namespace
}  // namespace horoscale
