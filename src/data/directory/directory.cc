#include "data/directory/directory.h"

#include <cstdlib>
#include <filesystem>

#include "base/json.h"
#include "base/text.h"

namespace muster::data {
namespace {

constexpr std::string_view kFormat = "1";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<std::string> read_line(const std::string& path) {
  const auto text = read_file(path, 4096);
  if (!text) return std::nullopt;
  return std::string(trim(*text));
}

Result<void> check_format(const std::string& path) {
  const auto format = read_line(path + "/FORMAT");
  if (!format)
    return fail(ErrorCode::not_found,
                "no Muster data in " + path + "; start a service with: muster up --data " + path);
  if (*format != kFormat) {
    return fail(ErrorCode::unsupported, path + " has layout " + *format + ", this version reads layout " +
                                            std::string(kFormat) +
                                            "; use the Muster that wrote it, or another --data");
  }
  return {};
}

}  // namespace

std::string DataDirectory::default_path() {
  if (auto path = environment("MUSTER_DATA"); !path.empty()) return path;
  if (auto base = environment("XDG_DATA_HOME"); !base.empty()) return base + "/muster";
  const auto home = environment("HOME");
  return (home.empty() ? "/var/lib" : home + "/.local/share") + "/muster";
}

Result<DataDirectory> DataDirectory::open_or_create(const std::string& path) {
  const auto absolute = std::filesystem::absolute(path).lexically_normal().string();
  const auto remedy = [&](const Error& error) {
    return tl::unexpected(error.with_context(
        "cannot use " + absolute + " as data directory (choose one with --data DIR or MUSTER_DATA)"));
  };
  if (auto made = make_directories(absolute, 0700); !made) return remedy(made.error());
  if (!std::filesystem::exists(absolute + "/FORMAT")) {
    if (auto written = write_file_atomic(absolute + "/FORMAT", std::string(kFormat) + "\n"); !written) {
      return remedy(written.error());
    }
  }
  MUSTER_CHECK(check_format(absolute));
  DataDirectory directory(absolute);
  for (const auto& part :
       {directory.keys(), directory.state(), directory.objects(), directory.logs(), directory.run()}) {
    if (auto made = make_directories(part, 0700); !made) return remedy(made.error());
  }
  return directory;
}

Result<DataDirectory> DataDirectory::open(const std::string& path) {
  const auto absolute = std::filesystem::absolute(path).lexically_normal().string();
  MUSTER_CHECK(check_format(absolute));
  return DataDirectory(absolute);
}

Result<FileLock> DataDirectory::lock() const {
  auto lock = FileLock::acquire(path_ + "/lock");
  if (lock || lock.error().code != ErrorCode::failed_precondition) return lock;
  const auto holder = pid();
  return fail(ErrorCode::failed_precondition,
              path_ + " is served by another musterd" +
                  (holder ? " (process " + std::to_string(*holder) + ")" : "") +
                  (endpoint() ? " at " + *endpoint() : "") +
                  "; stop it with `muster down`, or choose another --data");
}

std::optional<std::string> DataDirectory::endpoint() const { return read_line(path_ + "/endpoint"); }

Result<void> DataDirectory::write_endpoint(const std::string& url) const {
  return write_file_atomic(path_ + "/endpoint", url + "\n");
}

std::optional<std::string> DataDirectory::region() const { return read_line(path_ + "/region"); }

Result<void> DataDirectory::write_region(const std::string& region) const {
  return write_file_atomic(path_ + "/region", region + "\n");
}

std::optional<int> DataDirectory::pid() const {
  const auto line = read_line(path_ + "/musterd.pid");
  if (!line) return std::nullopt;
  const auto number = parse_int(*line);
  if (!number || *number <= 0) return std::nullopt;
  return static_cast<int>(*number);
}

Result<void> DataDirectory::write_pid(int pid) const {
  return write_file_atomic(path_ + "/musterd.pid", std::to_string(pid) + "\n");
}

Result<DataDirectory::RootKey> DataDirectory::root_key() const {
  MUSTER_TRY(const auto text, read_file(keys() + "/root.json", 4096));
  MUSTER_TRY(const auto object, json::parse_object(text));
  MUSTER_TRY(auto access, json::get_string(object, "access_key"));
  MUSTER_TRY(auto secret, json::get_string(object, "secret_key"));
  return RootKey{std::move(access), std::move(secret)};
}

Result<void> DataDirectory::write_root_key(const RootKey& key) const {
  json::Object object;
  object["access_key"] = key.access_key;
  object["secret_key"] = key.secret_key;
  return write_file_atomic(keys() + "/root.json", json::dump(object) + "\n", 0600);
}

}  // namespace muster::data
