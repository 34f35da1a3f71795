#include "api/query/query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::api::query {
namespace {

using ::testing::HasSubstr;

const Caller kCaller{.account = "000000000000",
                     .access_key = "AKIA1",
                     .region = "us-east-1",
                     .arn = "arn:aws:iam::000000000000:user/root",
                     .request_id = "r-1"};

std::string body(const net::Response& response) { return std::get<std::string>(response.body); }

TEST(Form, DecodesPlusAndEscapes) {
  const auto form = parse_form("Action=GetRole&RoleName=a%2Bb+c&empty&x=");
  EXPECT_EQ(form.at("RoleName"), "a+b c");
  EXPECT_EQ(form.at("empty"), "");
  EXPECT_EQ(form.at("x"), "");
}

TEST(Sts, NamesTheCaller) {
  const auto answer = run_sts("Action=GetCallerIdentity&Version=2011-06-15", kCaller);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(
      body(answer),
      "<GetCallerIdentityResponse "
      "xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><GetCallerIdentityResult>"
      "<Arn>arn:aws:iam::000000000000:user/root</Arn><UserId>AKIA1</UserId><Account>000000000000</Account>"
      "</GetCallerIdentityResult><ResponseMetadata><RequestId>r-1</RequestId></ResponseMetadata>"
      "</GetCallerIdentityResponse>");
}

TEST(Iam, RolesTrustSageMaker) {
  const auto answer = run_iam("Action=GetRole&RoleName=Train", kCaller);
  EXPECT_THAT(body(answer), HasSubstr("role/Train"));
  EXPECT_THAT(body(answer), HasSubstr("sagemaker.amazonaws.com"));
  const auto bad = run_iam("Action=GetRole&RoleName=a/b", kCaller);
  EXPECT_EQ(bad.status, 400);
  EXPECT_THAT(body(bad), HasSubstr("<Code>ValidationError</Code>"));
}

TEST(Iam, SimulationAllowsEachActionOnEachResource) {
  const auto answer = run_iam(
      "Action=SimulatePrincipalPolicy&PolicySourceArn=arn%3Aaws%3Aiam%3A%3A0%3Arole%2Fx&ActionNames.member.1="
      "s3:Get"
      "&ActionNames.member.2=s3:Put&ResourceArns.member.1=a",
      kCaller);
  EXPECT_THAT(body(answer),
              HasSubstr("<EvalActionName>s3:Put</EvalActionName><EvalResourceName>a</EvalResourceName>"
                        "<EvalDecision>allowed</EvalDecision>"));
  EXPECT_EQ(run_iam("Action=SimulatePrincipalPolicy", kCaller).status, 400);
}

std::string simulation(int actions, int resources) {
  std::string form = "Action=SimulatePrincipalPolicy&PolicySourceArn=r";
  for (int i = 1; i <= actions; ++i) form += "&ActionNames.member." + std::to_string(i) + "=s3:Get";
  for (int i = 1; i <= resources; ++i) form += "&ResourceArns.member." + std::to_string(i) + "=a";
  return form;
}

TEST(Iam, SimulationsAreBounded) {
  EXPECT_EQ(run_iam(simulation(100, 100), kCaller).status, 200);
  const auto many = run_iam(simulation(101, 100), kCaller);
  EXPECT_EQ(many.status, 400);
  EXPECT_THAT(body(many), HasSubstr("<Code>ValidationError</Code>"));
  EXPECT_THAT(body(many), HasSubstr("ActionNames has 101 members and ResourceArns 100; at most 10000 pairs"));
  EXPECT_EQ(run_iam(simulation(1, 10'001), kCaller).status, 400);
  // One long name on many others would be as large an answer.
  const auto long_name =
      run_iam(simulation(1, 10) + "&ActionNames.member.2=" + std::string(129, 'a'), kCaller);
  EXPECT_EQ(long_name.status, 400);
  EXPECT_THAT(body(long_name), HasSubstr("ActionNames.member.2 has 129 characters, at most 128"));
  EXPECT_EQ(run_iam(simulation(2, 1) + "&ResourceArns.member.2=" + std::string(2'049, 'a'), kCaller).status,
            400);
}

TEST(Query, UnknownActionsNameTheKnownOnes) {
  const auto answer = run_iam("Action=DeleteRole<", kCaller);
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(body(answer), HasSubstr("GetRole, SimulatePrincipalPolicy"));
  EXPECT_THAT(body(answer), HasSubstr("DeleteRole&lt;"));
}

}  // namespace
}  // namespace muster::api::query
