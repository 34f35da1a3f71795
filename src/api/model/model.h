// The table of constraints of the AWS operations that Muster answers, and the one validator that reads it.
//
// The table (constraints.json) holds facts of the published service models: members, types, required, minima,
// maxima, patterns, enums. It is made by tools/make-constraints. Clients check almost none of them.
//
// Immutable after load(); safe to use from many threads.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace muster::api {

// A value for a message: quoted and escaped as JSON does, so on one line; cut off after 80 bytes.
std::string shown(std::string_view value);

class Model {
 public:
  // Loads the table that is built into the program.
  static std::shared_ptr<const Model> load();
  ~Model();

  // What is wrong with `request` as input of the operation, as sentences that name the member, the value and
  // the limit; empty when nothing is. Unknown members are ignored, null counts as absent. At most 10.
  // Example: "HyperParameters has 101 entries, at most 100 are allowed".
  std::vector<std::string> check_input(std::string_view service, std::string_view operation,
                                       const json::Object& request) const;
  // The same for an answer, where unknown members are errors: for tests of our own answers.
  std::vector<std::string> check_output(std::string_view service, std::string_view operation,
                                        const json::Object& answer) const;
  // The members of `from` that the operation's output also has: how Describe repeats a request.
  json::Object common_members(std::string_view service, std::string_view operation,
                              const json::Object& from) const;
  std::vector<std::string> operations(std::string_view service) const;

 private:
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::api
