// Small XML documents as S3 sends them, written with pugixml. Well-formed whatever the text: a character that
// XML 1.0 cannot carry is written as U+FFFD. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "net/http.h"

namespace muster::api::s3 {

// A document being written: elements open and close in order.
class Xml {
 public:
  explicit Xml(const char* root);  // with S3's namespace
  Xml(const char* root, std::string_view name_space);
  ~Xml();

  Xml& open(const char* name);
  Xml& close();
  Xml& text(const char* name, std::string_view value);
  Xml& number(const char* name, std::uint64_t value) { return text(name, std::to_string(value)); }
  Xml& flag(const char* name, bool value) { return text(name, value ? "true" : "false"); }
  Xml& attribute(const char* name, std::string_view value);  // of the open element
  Xml& content(std::string_view value);                      // text of the open element

  net::Response response(int status = 200) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster::api::s3
