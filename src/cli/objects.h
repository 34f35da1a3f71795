// Objects: cp, ls, rm, mb, rb. Each function is one command: it prints and answers the exit code. One thread;
// the transfers of `cp` run in parallel inside.
#pragma once

#include <string>

#include "cli/session.h"

namespace muster::cli {

// One of the two is s3://BUCKET/KEY, the other a local path; folders and prefixes need `recursive`. "-" as
// the target prints the object.
int copy_objects(const Common& common, const std::string& from, const std::string& to, bool recursive);
// Buckets without an argument, else what is below s3://BUCKET/PREFIX.
int list_objects(const Common& common, const std::string& uri, bool recursive);
// s3://BUCKET/KEY, or with `recursive` every object whose key begins with KEY.
int remove_objects(const Common& common, const std::string& uri, bool recursive);
int make_bucket(const Common& common, const std::string& uri);
// An empty bucket, or with `force` any.
int remove_bucket(const Common& common, const std::string& uri, bool force);

// Removes every object below `place`; how many.
Result<std::uint64_t> remove_prefix(data::s3::Client& s3, const data::s3::Place& place);

}  // namespace muster::cli
