#include "runner/objects_s3.h"

#include <atomic>
#include <functional>

#include "data/s3/client.h"
#include "data/s3/transfer.h"

namespace muster::runner {
namespace {

namespace s3 = data::s3;

// The only waiting for the store that there is: callers see what remains when it is over. 120 answers such as
// 503, with up to 2 s between, are some two minutes.
const s3::Retry kPatience{
    .attempts_max = 120, .budget = 2'000, .delay_max = Millis{2'000}, .away_max = Millis{600'000}};

class JobCredentials final : public s3::CredentialsProvider {
 public:
  explicit JobCredentials(CredentialsCache& cache) : cache_(cache) {}
  Result<s3::Credentials> get() override {
    MUSTER_TRY(auto session, cache_.get());
    s3::Credentials out;
    out.access_key = std::move(session.access_key);
    out.secret_key = std::move(session.secret_key);
    out.session_token = std::move(session.token);
    return out;
  }
  void refresh() override { cache_.forget(); }

 private:
  CredentialsCache& cache_;
};

// A stop_token as data/s3 wants it.
class StopFlag {
 public:
  explicit StopFlag(std::stop_token stop) : callback_(std::move(stop), [this] { flag_ = true; }) {}
  const std::atomic<bool>* get() const { return &flag_; }

 private:
  std::atomic<bool> flag_{false};
  std::stop_callback<std::function<void()>> callback_;
};

s3::ObjectInfo to_s3(const ObjectInfo& info) { return {info.key, info.bytes, info.etag, info.modified}; }

class S3Objects final : public Objects {
 public:
  explicit S3Objects(std::unique_ptr<s3::Client> client) : client_(std::move(client)) {}

  Result<std::vector<ObjectInfo>> list(const S3Location& prefix) override {
    s3::ListRequest request;
    request.bucket = prefix.bucket;
    request.prefix = prefix.key;
    std::vector<ObjectInfo> out;
    MUSTER_CHECK(client_->list_objects(request, [&](const s3::ListPage& page) -> Result<void> {
      for (const auto& object : page.objects) {
        out.push_back({object.key, object.size, object.modified, object.etag});
      }
      return {};
    }));
    return out;
  }

  Result<void> download(const std::string& bucket, const std::vector<Download>& downloads,
                        const std::string& root, std::stop_token stop) override {
    std::vector<s3::Download> wanted;
    wanted.reserve(downloads.size());
    for (const auto& download : downloads) wanted.push_back({to_s3(download.object), download.path});
    const StopFlag flag(std::move(stop));
    s3::TransferOptions options;
    options.stop = flag.get();
    MUSTER_TRY(const auto report, s3::download_objects(*client_, bucket, wanted, root, options));
    if (report.refused.empty()) return {};
    const auto& [key, error] = report.refused.front();
    return tl::unexpected(error.with_context("s3://" + bucket + "/" + key));
  }

  Result<void> upload(const std::string& path, const S3Location& object, std::stop_token stop) override {
    const StopFlag flag(std::move(stop));
    s3::TransferOptions options;
    options.parallel = 4;
    options.stop = flag.get();
    MUSTER_CHECK(s3::upload_file(*client_, path, {object.bucket, object.key}, options));
    return {};
  }

  Result<void> remove(const S3Location& object) override {
    return client_->delete_object({object.bucket, object.key});
  }

  void cancel() override { client_->cancel(); }

 private:
  std::unique_ptr<s3::Client> client_;
};

}  // namespace

Result<std::unique_ptr<Objects>> s3_objects(const std::string& endpoint_url, const std::string& region,
                                            CredentialsCache& credentials) {
  s3::ClientOptions options;
  options.endpoint = endpoint_url;
  options.region = region;
  options.credentials = std::make_shared<JobCredentials>(credentials);
  options.retry = kPatience;
  MUSTER_TRY(auto client, s3::Client::create(std::move(options)));
  return std::make_unique<S3Objects>(std::move(client));
}

}  // namespace muster::runner
