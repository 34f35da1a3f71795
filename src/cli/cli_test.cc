#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/objects.h"
#include "cli/output.h"
#include "cli/request_file.h"
#include "cli/session.h"

namespace muster::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

TEST(Table, PadsByCharactersNotBytes) {
  Table table({"A", "B"});
  table.add({"é", "x"});
  table.add({"long", "y"});
  EXPECT_EQ(table.text(), "A     B\né     x\nlong  y\n");
}

TEST(Bar, FillsInProportion) {
  EXPECT_EQ(bar(0.5, 4), "██░░");
  EXPECT_EQ(bar(7, 2), "██");
  EXPECT_EQ(bar(-1, 2), "░░");
}

TEST(Command, IsPrintedAsAShellTakesIt) {
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(command_of("/srv/a-b_1.c"), "muster --data /srv/a-b_1.c");
  EXPECT_EQ(command_of("/my data"), "muster --data '/my data'");
  EXPECT_EQ(command_of(data::DataDirectory::default_path()), "muster");
  EXPECT_EQ(command_of(data::DataDirectory::default_path(), "/my bin/muster"), "'/my bin/muster'");
}

TEST(Session, TakesAddressAndRegionFromTheDataDirectory) {
  const TempDir dir;
  const auto data = data::DataDirectory::open_or_create(dir / "data").value();
  EXPECT_THAT(endpoint_of(data).error().message, HasSubstr("up --detach"));
  ASSERT_TRUE(data.write_endpoint("http://127.0.0.1:9650"));
  ASSERT_TRUE(data.write_region("eu-central-1"));
  ASSERT_TRUE(data.write_root_key({"AK", "secret"}));
  const auto endpoint = endpoint_of(data).value();
  EXPECT_EQ(endpoint.url, "http://127.0.0.1:9650");
  EXPECT_EQ(endpoint.region, "eu-central-1");
}

class RequestFile : public ::testing::Test {
 protected:
  Result<PreparedRequest> prepare(std::string_view toml, RequestKind kind = RequestKind::training) {
    EXPECT_TRUE(write_file_atomic(dir_ / "my job_2.toml", toml));
    return prepare_request(dir_ / "my job_2.toml", kind, {.bucket = "b", .name_suffix = "7f3a"});
  }
  TempDir dir_;
};

TEST_F(RequestFile, FillsInWhatSuitsALocalService) {
  ASSERT_TRUE(make_directories(dir_ / "text"));
  const auto made = prepare(R"(
[HyperParameters]
lr = 0.5
steps = 10
name = "x"
[[InputDataConfig]]
ChannelName = "train"
DataSource.S3DataSource.S3Uri = "text"
)")
                        .value();
  EXPECT_EQ(made.job_name, "my-job-2-7f3a");
  EXPECT_EQ(made.request.at("HyperParameters").at("steps"), "10");
  EXPECT_EQ(made.request.at("HyperParameters").at("lr"), "0.5");
  EXPECT_EQ(made.request.at("AlgorithmSpecification").at("TrainingImage"), "muster/train");
  EXPECT_EQ(made.request.at("OutputDataConfig").at("S3OutputPath"), "s3://b/output");
  ASSERT_THAT(made.uploads, SizeIs(1));
  EXPECT_EQ(made.uploads[0].local_path, dir_ / "text");
  EXPECT_EQ(made.uploads[0].s3_uri, "s3://b/my-job-2-7f3a/input/train");
  EXPECT_EQ(
      json::dump(made.request.at("InputDataConfig").at(0).at("DataSource").at("S3DataSource").at("S3Uri")),
      "\"s3://b/my-job-2-7f3a/input/train\"");
}

TEST_F(RequestFile, Processing) {
  const auto made = prepare(R"(
ProcessingJobName = "tokens"
[[ProcessingInputs]]
InputName = "text"
S3Input.S3Uri = "s3://b/text"
)",
                            RequestKind::processing)
                        .value();
  EXPECT_EQ(made.job_name, "tokens");
  EXPECT_THAT(made.uploads, SizeIs(0));
  EXPECT_EQ(made.request.at("ProcessingInputs").at(0).at("S3Input").at("LocalPath"),
            "/opt/ml/processing/input/text");
}

TEST_F(RequestFile, RefusalsNameFileAndRemedy) {
  EXPECT_THAT(prepare("x = [").error().message, HasSubstr("my job_2.toml, line 1"));
  EXPECT_THAT(
      prepare("[[InputDataConfig]]\nChannelName = \"a\"\nDataSource.S3DataSource.S3Uri = \"no/such\"\n")
          .error()
          .message,
      HasSubstr("neither s3://BUCKET/PREFIX nor a path that exists"));
  EXPECT_THAT(prepare_request(dir_.path(), RequestKind::training, {}).error().message,
              HasSubstr("is a folder"));
  EXPECT_EQ(prepare_request("/no/such.toml", RequestKind::training, {}).error().code,
            ErrorCode::invalid_argument);
  EXPECT_THAT(prepare("# nothing").error().message, HasSubstr("my job_2.toml is empty"));
  EXPECT_THAT(prepare_request("/dev/null", RequestKind::training, {}).error().message,
              HasSubstr("/dev/null is a device"));
  ASSERT_EQ(::mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(prepare_request(dir_ / "pipe", RequestKind::training, {}).error().message,
              HasSubstr("pipe is a FIFO"));
}

TEST_F(RequestFile, AHyperparameterWithADotIsToldToBeQuoted) {
  const std::string said = "my job_2.toml: HyperParameters: train is a table";
  EXPECT_THAT(prepare("[HyperParameters]\ntrain.steps = 200").error().message,
              AllOf(HasSubstr(said), HasSubstr("in quotes: \"train.steps\" = 200")));
  EXPECT_THAT(prepare("[HyperParameters.train]\nother.name = \"x\"").error().message,
              HasSubstr("\"train.other.name\" = \"x\""));
  EXPECT_EQ(
      prepare("[HyperParameters]\n\"train.steps\" = 200")->request.at("HyperParameters").at("train.steps"),
      "200");
}

TEST_F(RequestFile, TheBucketIsNeededOnlyWhereItIsNamed) {
  EXPECT_TRUE(prepare("TrainingJobName = \"a\"")->needs_bucket);
  const std::string output = "OutputDataConfig.S3OutputPath = \"s3://mine/x\"\n";
  EXPECT_FALSE(prepare(output)->needs_bucket);
  ASSERT_TRUE(make_directories(dir_ / "text"));
  const std::string_view channel =
      "[[InputDataConfig]]\nChannelName = \"a\"\nDataSource.S3DataSource.S3Uri = \"text\"\n";
  EXPECT_TRUE(prepare(output + std::string(channel))->needs_bucket);
}

TEST_F(RequestFile, UnknownMembersAreRefused) {
  const auto refusal = [&](std::string_view toml, RequestKind kind) {
    return prepare(toml, kind).error().message;
  };
  EXPECT_THAT(refusal("TrainingJobName = \"a\"", RequestKind::processing),
              HasSubstr("my job_2.toml: TrainingJobName is not a member of CreateProcessingJob; did you mean "
                        "ProcessingJobName? (muster train sends CreateTrainingJob, which has it)"));
  EXPECT_THAT(refusal("[HyperParameters]\na = 1", RequestKind::processing),
              HasSubstr("CreateProcessingJob (muster train sends CreateTrainingJob, which has it)"));
  EXPECT_THAT(refusal("[HyperParameter]\na = 1", RequestKind::training),
              HasSubstr("did you mean HyperParameters?"));
  EXPECT_THAT(refusal("zzz = 1", RequestKind::training), HasSubstr("known are TrainingJobName, Hyper"));
}

// The table of constraints is the service's; the command line does not link it.
TEST(RequestMembers, AreThoseOfTheServiceModel) {
  const auto text = read_file(std::string(MUSTER_SOURCE_DIR) + "/src/api/model/constraints.json").value();
  const auto table = json::parse_object(text).value();
  const auto& shapes = table.at("services").at("sagemaker").at("shapes").as_object();
  for (const auto& [kind, shape] : {std::pair(RequestKind::training, "CreateTrainingJobRequest"),
                                    std::pair(RequestKind::processing, "CreateProcessingJobRequest")}) {
    std::vector<std::string> members;
    for (const auto& member : shapes.at(shape).at("members").as_object()) members.emplace_back(member.key());
    EXPECT_THAT(request_members(kind), UnorderedElementsAreArray(members)) << shape;
  }
}

TEST(ExitCode, TellsWhoseFaultItIs) {
  EXPECT_EQ(exit_code_of(Error{ErrorCode::invalid_argument, ""}), kUsage);
  EXPECT_EQ(exit_code_of(Error{ErrorCode::not_found, ""}), kNotFound);
  EXPECT_EQ(exit_code_of(Error{ErrorCode::failed_precondition, ""}), kRefused);
  EXPECT_EQ(exit_code_of(Error{ErrorCode::unavailable, ""}), kUnavailable);
  EXPECT_EQ(exit_code_of(Error{ErrorCode::io, ""}), kFailed);
  EXPECT_EQ(exit_code_of(Error{ErrorCode::no_space, ""}), kFailed);
}

}  // namespace
}  // namespace muster::cli
