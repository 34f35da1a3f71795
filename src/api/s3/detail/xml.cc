#include "api/s3/detail/xml.h"

#include <pugixml.hpp>

#include "base/text.h"

namespace muster::api::s3 {
namespace {

constexpr std::string_view kNamespace = "http://s3.amazonaws.com/doc/2006-03-01/";

// A carriage return as such is read as a line feed; pugixml writes none of its own.
std::string with_carriage_returns(std::string_view xml) {
  std::string out;
  out.reserve(xml.size());
  for (const char c : xml) {
    if (c == '\r') {
      out += "&#13;";
    } else {
      out += c;
    }
  }
  return out;
}

struct StringWriter final : pugi::xml_writer {
  std::string out;
  void write(const void* data, std::size_t size) override {
    out.append(static_cast<const char*>(data), size);
  }
};

}  // namespace

struct Xml::Impl {
  pugi::xml_document document;
  pugi::xml_node current;
};

Xml::Xml(const char* root) : Xml(root, kNamespace) {}

Xml::Xml(const char* root, std::string_view name_space) : impl_(std::make_unique<Impl>()) {
  auto declaration = impl_->document.append_child(pugi::node_declaration);
  declaration.append_attribute("version") = "1.0";
  declaration.append_attribute("encoding") = "UTF-8";
  impl_->current = impl_->document.append_child(root);
  if (!name_space.empty()) attribute("xmlns", name_space);
}

Xml::~Xml() = default;

Xml& Xml::open(const char* name) {
  impl_->current = impl_->current.append_child(name);
  return *this;
}

Xml& Xml::close() {
  impl_->current = impl_->current.parent();
  return *this;
}

Xml& Xml::text(const char* name, std::string_view value) { return open(name).content(value).close(); }

Xml& Xml::attribute(const char* name, std::string_view value) {
  impl_->current.append_attribute(name) = to_xml_lossy(value).c_str();
  return *this;
}

Xml& Xml::content(std::string_view value) {
  impl_->current.text() = to_xml_lossy(value).c_str();
  return *this;
}

net::Response Xml::response(int status) const {
  StringWriter writer;
  impl_->document.save(writer, "", pugi::format_raw, pugi::encoding_utf8);
  net::Response response;
  response.status = status;
  response.headers.set("Content-Type", "application/xml");
  response.body = with_carriage_returns(writer.out);
  return response;
}

}  // namespace muster::api::s3
