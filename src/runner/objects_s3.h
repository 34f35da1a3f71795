// The object store of a job over data/s3, with the job's own credentials.
#pragma once

#include "runner/credentials.h"
#include "runner/transfer/objects.h"

namespace muster::runner {

// While the endpoint refuses or resets connections it counts as away and is waited for (10 min at most).
// `credentials` outlives the store.
Result<std::unique_ptr<Objects>> s3_objects(const std::string& endpoint_url, const std::string& region,
                                            CredentialsCache& credentials);

}  // namespace muster::runner
