#include "net/detail/port_holder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "base/file.h"
#include "base/text.h"

namespace muster::net::detail {
namespace {

// Inodes of the listening sockets on `port` in one of /proc/net/tcp, tcp6.
void add_listeners(const std::string& table, std::uint16_t port, std::set<std::string>& inodes) {
  const auto text = read_file(table);
  if (!text) return;
  for (const auto line : split(*text, '\n')) {
    std::vector<std::string_view> words;
    for (const auto word : split(line, ' ')) {
      if (!word.empty()) words.push_back(word);
    }
    if (words.size() < 10 || words[3] != "0A") continue;  // 0A: LISTEN
    const auto hex_port = words[1].substr(words[1].rfind(':') + 1);
    unsigned value = 0;
    std::from_chars(hex_port.data(), hex_port.data() + hex_port.size(), value, 16);
    if (value == port) inodes.insert("socket:[" + std::string(words[9]) + "]");
  }
}

bool holds(const std::filesystem::path& process, const std::set<std::string>& inodes) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(process / "fd", error)) {
    std::error_code ignored;
    if (inodes.count(std::filesystem::read_symlink(entry.path(), ignored).string()) > 0) return true;
  }
  return false;
}

}  // namespace

std::string holder_of_port(std::uint16_t port) {
  std::set<std::string> inodes;
  add_listeners("/proc/net/tcp", port, inodes);
  add_listeners("/proc/net/tcp6", port, inodes);
  if (inodes.empty()) return "";
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const auto pid = entry.path().filename().string();
    if (!parse_int(pid) || !holds(entry.path(), inodes)) continue;
    const auto name = read_file((entry.path() / "comm").string());
    return std::string(name ? trim(*name) : "a process") + " (pid " + pid + ")";
  }
  return "";
}

}  // namespace muster::net::detail
