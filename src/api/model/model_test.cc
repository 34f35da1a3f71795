#include "api/model/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::api {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json::Object minimal() {
  return json::parse_object(R"({
    "TrainingJobName": "demo", "RoleArn": "arn:aws:iam::000000000000:role/Train",
    "AlgorithmSpecification": {"TrainingImage": "muster/host", "TrainingInputMode": "File"},
    "OutputDataConfig": {"S3OutputPath": "s3://b/out"},
    "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1},
    "StoppingCondition": {"MaxRuntimeInSeconds": 60}})")
      .value();
}

std::vector<std::string> check(const json::Object& request) {
  static const auto model = Model::load();
  return model->check_input("sagemaker", "CreateTrainingJob", request);
}

TEST(Model, AcceptsARequestAndUnknownMembers) {
  auto request = minimal();
  request["SomethingNew"] = 3;
  request["VpcConfig"] = nullptr;
  EXPECT_THAT(check(request), IsEmpty());
}

struct Case {
  const char* name;
  const char* patch;  // members that replace those of the minimal request
  const char* said;
};

class ModelRefuses : public ::testing::TestWithParam<Case> {};

TEST_P(ModelRefuses, WithValueAndLimit) {
  auto request = minimal();
  auto patch = json::parse_object(GetParam().patch).value();
  for (auto& member : patch) {
    request.insert_or_assign(member.key(), std::move(member.value()));
  }
  EXPECT_THAT(check(request), Contains(HasSubstr(GetParam().said)));
}

INSTANTIATE_TEST_SUITE_P(
    Table, ModelRefuses,
    ::testing::Values(
        Case{"missing", R"({"RoleArn": null})", "RoleArn is required and missing"},
        Case{"nested", R"({"OutputDataConfig": {}})",
             "OutputDataConfig.S3OutputPath is required and missing"},
        Case{"pattern", R"({"TrainingJobName": "no spaces!"})",
             "TrainingJobName is \"no spaces!\", it must match"},
        Case{"long_name",
             R"({"TrainingJobName": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"})",
             "TrainingJobName has 64 characters, at most 63 are allowed"},
        Case{"lines", R"({"HyperParameters": {"prompt": "one\ntwo"}})",
             R"(HyperParameters["prompt"] is "one\ntwo", it must be one line (.*); escape the line breaks)"},
        Case{"lines_too", R"({"TrainingJobName": "no\nspaces!"})",
             R"(TrainingJobName is "no\nspaces!", it must match)"},
        Case{"type", R"({"HyperParameters": {"lr": 0.1}})",
             "HyperParameters[\"lr\"] must be a string, not 1E-1"},
        Case{"list", R"({"InputDataConfig": []})", "InputDataConfig has 0 entries, at least 1 are needed"},
        Case{"number", R"({"StoppingCondition": {"MaxRuntimeInSeconds": 0}})",
             "MaxRuntimeInSeconds is 0, at least 1 is needed"},
        Case{"enum", R"({"OutputDataConfig": {"S3OutputPath": "s3://b/o", "CompressionType": "ZIP"}})",
             "CompressionType is \"ZIP\", it must be one of GZIP, NONE"},
        Case{"instance_type", R"({"ResourceConfig": {"InstanceType": "ml.m5.larg", "InstanceCount": 1}})",
             "(did you mean ml.m5.large?)"},
        Case{"whole", R"({"ResourceConfig": {"InstanceCount": 1.5}})", "must be a whole number"},
        Case{"object", R"({"ResourceConfig": []})", "ResourceConfig must be an object, not []"}),
    [](const auto& test) { return test.param.name; });

TEST(Model, EnvironmentValuesMayHaveLines) {
  auto request = minimal();
  request["Environment"] = {{"SCRIPT", "one\ntwo\t\x1b[0m"}};
  EXPECT_THAT(check(request), IsEmpty());
}

TEST(Model, ShownValuesAreShortAndOnOneLine) {
  EXPECT_EQ(shown("a \"b\"\n"), R"("a \"b\"\n")");
  EXPECT_EQ(shown(std::string(100, 'x')), '"' + std::string(80, 'x') + "...\"");
  EXPECT_EQ(shown(std::string(79, 'x') + "\u00e9"), '"' + std::string(79, 'x') + "\uFFFD...\"");
}

TEST(Model, CountsEntriesOfMaps) {
  auto request = minimal();
  json::Object many;
  for (int i = 0; i < 101; ++i) many["k" + std::to_string(i)] = "v";
  request["HyperParameters"] = many;
  EXPECT_THAT(check(request), ElementsAre("HyperParameters has 101 entries, at most 100 are allowed"));
}

TEST(Model, ChecksAnswersStrictly) {
  const auto model = Model::load();
  EXPECT_THAT(model->check_output("sagemaker", "CreateTrainingJob",
                                  json::parse_object(R"({"TrainingJobArn": "x", "Extra": 1})").value()),
              Contains("Extra is not a member"));
}

}  // namespace
}  // namespace muster::api
