#include "api/sagemaker/sagemaker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "api/testing/fake_service.h"
#include "base/text.h"

namespace muster::api::sagemaker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kTraining = R"({
  "TrainingJobName": "demo", "RoleArn": "arn:aws:iam::000000000000:role/Train",
  "AlgorithmSpecification": {"TrainingImage": "muster/host", "TrainingInputMode": "File",
    "ContainerEntrypoint": ["/bin/echo"], "ContainerArguments": ["hello"]},
  "HyperParameters": {"lr": "0.1"}, "Environment": {"A": "b"},
  "InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix",
    "S3Uri": "s3://b/text", "S3DataDistributionType": "ShardedByS3Key"}}}],
  "OutputDataConfig": {"S3OutputPath": "s3://b/out/"},
  "CheckpointConfig": {"S3Uri": "s3://b/ckpt"},
  "RetryStrategy": {"MaximumRetryAttempts": 2},
  "Tags": [{"Key": "team", "Value": "a"}],
  "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1},
  "StoppingCondition": {"MaxRuntimeInSeconds": 60}})";

constexpr const char* kProcessing = R"({
  "ProcessingJobName": "tokens", "RoleArn": "arn:aws:iam::000000000000:role/Train",
  "AppSpecification": {"ImageUri": "muster/data", "ContainerArguments": ["tokenize"]},
  "ProcessingInputs": [{"InputName": "text", "S3Input": {"S3Uri": "s3://b/text", "S3DataType": "S3Prefix",
    "LocalPath": "/opt/ml/processing/input/text", "S3InputMode": "File"}}],
  "ProcessingOutputConfig": {"Outputs": [{"OutputName": "shards", "S3Output": {"S3Uri": "s3://b/shards",
    "LocalPath": "/opt/ml/processing/output/shards", "S3UploadMode": "EndOfJob"}}]},
  "ProcessingResources": {"ClusterConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1,
    "VolumeSizeInGB": 1}}})";

// Puts `value` at a path such as /a/0/b; the index after the last appends.
void put(json::Value& root, std::string_view path, json::Value value) {
  auto* at = &root;
  for (const auto part : split(path.substr(1), '/')) {
    if (!at->is_array()) {
      at = &at->get_object()[part];
      continue;
    }
    auto& list = at->get_array();
    const auto index = static_cast<std::size_t>(*parse_int(part));
    if (index == list.size()) list.emplace_back(nullptr);
    at = &list.at(index);
  }
  *at = std::move(value);
}

class SageMaker : public ::testing::Test {
 protected:
  SageMaker() {
    Options options;
    options.images["*/my-img:*"] = "muster/host";
    options.bucket_exists = [](const std::string& bucket) { return bucket != "missing"; };
    operations_ = operations(service_, model_, options);
    caller_ = Caller{.account = "000000000000", .access_key = "AK", .region = "us-east-1"};
  }
  ApiResult<json::Object> call(const std::string& name, const json::Object& request) {
    auto answer = operations_.at(name)(request, caller_);
    if (answer) {
      EXPECT_THAT(model_->check_output("sagemaker", name, *answer), IsEmpty()) << name;
    }
    return answer;
  }
  ApiResult<json::Object> call(const std::string& name, const std::string& request) {
    return call(name, json::parse_object(request).value());
  }
  testing::FakeService service_;
  std::shared_ptr<const Model> model_ = Model::load();
  JsonOperations operations_;
  Caller caller_;
};

TEST_F(SageMaker, CreateTrainingJobMakesAWorkload) {
  const auto answer = call("CreateTrainingJob", kTraining);
  ASSERT_TRUE(answer) << answer.error().error.message;
  EXPECT_EQ(answer->at("TrainingJobArn"), "arn:aws:sagemaker:us-east-1:000000000000:training-job/demo");
  const auto& job = service_.submitted;
  EXPECT_EQ(job.nodes, 2);
  EXPECT_EQ(job.retries, 2);
  EXPECT_EQ(job.max_runtime, Millis(60'000));
  EXPECT_EQ(job.workload.program, "host");
  EXPECT_THAT(job.workload.entrypoint, ElementsAre("/bin/echo"));
  ASSERT_THAT(job.workload.channels, SizeIs(1));
  EXPECT_EQ(job.workload.channels[0].local_path, "/opt/ml/input/data/train");
  EXPECT_EQ(job.workload.channels[0].distribution, domain::Distribution::sharded_by_s3_key);
  ASSERT_THAT(job.workload.outputs, SizeIs(2));
  EXPECT_EQ(job.workload.outputs[0].s3_uri, "s3://b/out/demo/output/model.tar.gz");
  EXPECT_EQ(job.workload.checkpoint.local_path, "/opt/ml/checkpoints");
}

TEST_F(SageMaker, DescribeRepeatsTheRequestAndIsComplete) {
  ASSERT_TRUE(call("CreateTrainingJob", kTraining));
  const auto answer = call("DescribeTrainingJob", R"({"TrainingJobName": "demo"})").value();
  EXPECT_EQ(answer.at("TrainingJobStatus"), "InProgress");
  EXPECT_EQ(answer.at("HyperParameters").at("lr"), "0.1");
  EXPECT_EQ(answer.at("OutputDataConfig").at("KmsKeyId"), "");
  EXPECT_FALSE(answer.contains("Tags"));
  EXPECT_THAT(json::dump(answer), HasSubstr("ml.m5.large is rehearsed on local nodes"));
  EXPECT_EQ(call("DescribeTrainingJob", R"({"TrainingJobName": "none"})").error().code,
            "ValidationException");
}

TEST_F(SageMaker, ProcessingJobs) {
  const auto created = call("CreateProcessingJob", kProcessing);
  ASSERT_TRUE(created) << created.error().error.message;
  const auto& job = service_.submitted;
  EXPECT_EQ(job.workload.program, "data");
  EXPECT_THAT(job.workload.files.at("/opt/ml/config/processingjobconfig.json"),
              HasSubstr("processing-job/tokens"));
  const auto answer = call("DescribeProcessingJob", R"({"ProcessingJobName": "tokens"})").value();
  EXPECT_EQ(answer.at("ProcessingJobStatus"), "InProgress");
  ASSERT_TRUE(call("StopProcessingJob", R"({"ProcessingJobName": "tokens"})"));
  EXPECT_EQ(service_.stopped, "tokens");
}

TEST_F(SageMaker, NamesOfProcessingInputsAndOutputsHaveNoControlCharacters) {
  for (const auto* path : {"/ProcessingInputs/0/InputName", "/ProcessingOutputConfig/Outputs/0/OutputName"}) {
    auto request = json::parse(kProcessing).value();
    put(request, path, "a\nb");
    const auto answer = call("CreateProcessingJob", request.as_object());
    ASSERT_FALSE(answer) << path;
    EXPECT_EQ(answer.error().code, "ValidationException");
    EXPECT_THAT(answer.error().error.message, HasSubstr("Name has the character U+000A at byte 2"));
  }
}

// Only NUL cannot be in an environment.
TEST_F(SageMaker, EnvironmentValuesMayHaveLinesAndColours) {
  auto request = json::parse(kTraining).value();
  put(request, "/Environment/A", "one\ntwo\t\x1b[0m");
  ASSERT_TRUE(call("CreateTrainingJob", request.as_object()));
  EXPECT_EQ(service_.submitted.workload.environment.at("A"), "one\ntwo\t\x1b[0m");
}

TEST_F(SageMaker, DuplicateNamesAreInUse) {
  ASSERT_TRUE(call("CreateTrainingJob", kTraining));
  EXPECT_EQ(call("CreateTrainingJob", kTraining).error().code, "ResourceInUse");
}

TEST_F(SageMaker, TagsOfCreationAreListed) {
  ASSERT_TRUE(call("CreateTrainingJob", kTraining));
  const auto tags =
      call("ListTags", R"({"ResourceArn": "arn:aws:sagemaker:us-east-1:000000000000:training-job/demo"})");
  EXPECT_EQ(json::dump(tags.value().at("Tags")), R"([{"Key":"team","Value":"a"}])");
  EXPECT_EQ(call("ListTags", R"({"ResourceArn": "arn:aws:sagemaker:us-east-1:000000000000:model/demo"})")
                .error()
                .code,
            "ValidationException");
}

struct Refusal {
  const char* name;
  const char* path;   // JSON pointer into the minimal request
  const char* value;  // put there
  const char* said;
};

class SageMakerRefuses : public SageMaker, public ::testing::WithParamInterface<Refusal> {};

TEST_P(SageMakerRefuses, ByName) {
  json::Value request = json::parse(kTraining).value();
  put(request, GetParam().path, json::parse(GetParam().value).value());
  const auto answer = call("CreateTrainingJob", request.as_object());
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, "ValidationException");
  EXPECT_THAT(answer.error().error.message, HasSubstr(GetParam().said));
  EXPECT_THAT(service_.views, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Table, SageMakerRefuses,
    ::testing::Values(
        Refusal{"image", "/AlgorithmSpecification/TrainingImage", "\"pytorch:2\"",
                "map it to one of them under [images]"},
        Refusal{"no_command", "/AlgorithmSpecification/ContainerEntrypoint", "null",
                "has no command of its own"},
        Refusal{"fast_file", "/InputDataConfig/0/InputMode", "\"FastFile\"",
                "InputMode FastFile is not supported"},
        Refusal{"manifest", "/InputDataConfig/0/DataSource/S3DataSource/S3DataType", "\"ManifestFile\"",
                "use S3Prefix"},
        Refusal{"bucket", "/InputDataConfig/0/DataSource/S3DataSource/S3Uri", "\"s3://missing/x\"",
                "does not exist; make it with"},
        Refusal{"output_bucket", "/OutputDataConfig/S3OutputPath", "\"s3://missing/x\"",
                "bucket \"missing\""},
        Refusal{"https", "/OutputDataConfig/S3OutputPath", "\"https://b/x\"", "must begin with s3://"},
        Refusal{"warm_pool", "/ResourceConfig/KeepAlivePeriodInSeconds", "60",
                "warm pools are not supported"},
        Refusal{"isolation", "/EnableNetworkIsolation", "true", "EnableNetworkIsolation cannot be enforced"},
        Refusal{"encryption", "/EnableInterContainerTrafficEncryption", "true",
                "EnableInterContainerTrafficEncryption cannot be enforced"},
        Refusal{"vpc", "/VpcConfig", R"({"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]})",
                "VpcConfig cannot be enforced"},
        Refusal{"output_key", "/OutputDataConfig/KmsKeyId", "\"alias/k\"",
                "OutputDataConfig.KmsKeyId cannot be used"},
        Refusal{"volume_key", "/ResourceConfig/VolumeKmsKeyId", "\"alias/k\"",
                "ResourceConfig.VolumeKmsKeyId cannot be used"},
        Refusal{"pending", "/StoppingCondition/MaxPendingTimeInSeconds", "3600",
                "MaxPendingTimeInSeconds is not supported"},
        Refusal{"many", "/ResourceConfig/InstanceCount", "4294967297",
                "InstanceCount is 4294967297, at most 10000"},
        Refusal{"count", "/ResourceConfig/InstanceCount", "0", "at least 1 is needed"},
        Refusal{"runtime", "/StoppingCondition/MaxRuntimeInSeconds", "2419201", "at most 2419200"},
        Refusal{"dot_dot", "/InputDataConfig/0/ChannelName", "\"..\"", "may not be"},
        Refusal{"checkpoint", "/CheckpointConfig/LocalPath", "\"/etc\"", "must be below /opt/ml/"},
        Refusal{"checkpoint_dots", "/CheckpointConfig/LocalPath", "\"/opt/ml/../../etc\"", "without \"..\""},
        Refusal{"checkpoint_slashes", "/CheckpointConfig/LocalPath", "\"/opt/ml//x\"", "and \"//\""},
        Refusal{"checkpoint_dot", "/CheckpointConfig/LocalPath", "\"/opt/ml/./x\"", "and \"//\""},
        Refusal{"record_wrapper", "/InputDataConfig/0/RecordWrapperType", "\"RecordIO\"",
                "goes with Pipe mode only"},
        Refusal{"nul_in_environment", "/Environment/A", R"("b\u0000c")",
                "Environment[\"A\"] has the character U+0000 at byte 2, which no environment"},
        Refusal{"nul_in_a_hyperparameter", "/HyperParameters/lr", R"("\u0000")",
                "HyperParameters[\"lr\"] has the character U+0000 at byte 1"},
        Refusal{"control_in_a_key", "/HyperParameters", R"({"a\u001bb": "1"})",
                "the key \"a\\u001bb\" of HyperParameters has the character U+001B at byte 2"},
        Refusal{"nul_in_an_argument", "/AlgorithmSpecification/ContainerArguments/0", R"("x\u0000")",
                "AlgorithmSpecification.ContainerArguments[0] has the character U+0000"},
        Refusal{"control_in_a_path", "/CheckpointConfig/LocalPath", R"("/opt/ml/c\u007f")",
                "CheckpointConfig.LocalPath has the character U+007F at byte 10"},
        Refusal{"nul_in_a_uri", "/InputDataConfig/0/DataSource/S3DataSource/S3Uri", R"("s3://b/\u0000")",
                "InputDataConfig[0].DataSource.S3DataSource.S3Uri has the character U+0000"},
        Refusal{"two_of_a_name", "/InputDataConfig/1",
                R"({"ChannelName": "train", "DataSource": {"S3DataSource":
            {"S3DataType": "S3Prefix", "S3Uri": "s3://b/x"}}})",
                "is used twice"}),
    [](const auto& test) { return test.param.name; });

TEST_F(SageMaker, ProcessingRefusesWhatCannotBeKept) {
  json::Value request = json::parse(kProcessing).value();
  put(request, "/NetworkConfig",
      json::parse(R"({"EnableInterContainerTrafficEncryption": true, "EnableNetworkIsolation": true,
                      "VpcConfig": {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}})")
          .value());
  put(request, "/ProcessingOutputConfig/KmsKeyId", "alias/k");
  put(request, "/ProcessingResources/ClusterConfig/VolumeKmsKeyId", "alias/k");
  const auto answer = call("CreateProcessingJob", request.as_object());
  ASSERT_FALSE(answer);
  const auto& said = answer.error().error.message;
  for (const auto* member : {"NetworkConfig.EnableInterContainerTrafficEncryption cannot",
                             "NetworkConfig.EnableNetworkIsolation cannot", "NetworkConfig.VpcConfig cannot",
                             "ProcessingOutputConfig.KmsKeyId cannot",
                             "ProcessingResources.ClusterConfig.VolumeKmsKeyId cannot"}) {
    EXPECT_THAT(said, HasSubstr(member));
  }
}

TEST_F(SageMaker, FlagsThatAreOffAndEmptyKeysAreFine) {
  auto request = json::parse(kTraining).value();
  put(request, "/EnableNetworkIsolation", false);
  put(request, "/EnableInterContainerTrafficEncryption", false);
  put(request, "/OutputDataConfig/KmsKeyId", "");
  EXPECT_TRUE(call("CreateTrainingJob", request.as_object()));
}

TEST_F(SageMaker, ListPagesInOrderWithoutRepeating) {
  auto request = json::parse_object(kTraining).value();
  for (int i = 0; i < 25; ++i) {
    request["TrainingJobName"] = "job-" + std::to_string(i);
    ASSERT_TRUE(call("CreateTrainingJob", request));
  }
  for (const auto* sort : {"Name", "CreationTime", "Status"}) {
    for (const auto* order : {"Ascending", "Descending"}) {
      std::vector<std::string> names;
      json::Object page;
      page["SortBy"] = sort;
      page["SortOrder"] = order;
      page["MaxResults"] = 7;
      do {
        const auto answer = call("ListTrainingJobs", page).value();
        for (const auto& job : answer.at("TrainingJobSummaries").as_array()) {
          names.emplace_back(json::view(job.at("TrainingJobName").as_string()));
        }
        if (!answer.contains("NextToken")) break;
        page["NextToken"] = answer.at("NextToken");
      } while (names.size() < 100);
      EXPECT_THAT(names, SizeIs(25)) << sort << order;
      std::sort(names.begin(), names.end());
      EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
    }
  }
  EXPECT_EQ(call("ListTrainingJobs", R"({"NextToken": "x"})").error().code, "ValidationException");
  EXPECT_THAT(
      call("ListTrainingJobs", R"({"NameContains": "job-2"})").value().at("TrainingJobSummaries").as_array(),
      SizeIs(6));
}

TEST_F(SageMaker, ARefusedInstanceTypeComesWithTheRemedy) {
  Options options;
  options.instance_types["ml.m5*"] = "refuse";
  operations_ = operations(service_, model_, options);
  const auto answer = call("CreateTrainingJob", kTraining);
  ASSERT_FALSE(answer);
  EXPECT_THAT(answer.error().error.message,
              HasSubstr("does not allow here; ask for another type, or write \"ml.m5.large\" = \"local\""));
}

// What `aws`, boto3 and the SageMaker SDKs 2 and 3 put into their requests.
TEST_F(SageMaker, AcceptsWhatRealClientsSend) {
  Options options;
  options.images["*/my-img:*"] = "muster/train";
  operations_ = operations(service_, model_, options);
  std::ifstream lines(std::string(MUSTER_SOURCE_DIR) + "/src/api/sagemaker/testdata/client_requests.jsonl");
  int tried = 0;
  for (std::string line; std::getline(lines, line); ++tried) {
    const auto entry = json::parse_object(line).value();
    const auto answer = call(json::get_string(entry, "operation").value(), entry.at("request").as_object());
    EXPECT_TRUE(answer) << line << ": " << answer.error().error.message;
  }
  EXPECT_EQ(tried, 6);
}

}  // namespace
}  // namespace muster::api::sagemaker
