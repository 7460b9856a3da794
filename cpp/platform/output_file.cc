#include "platform/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "platform/unique_fd.h"

namespace horoscale {
namespace {

// Truncates an existing file and makes it private.
Status TakeOver(int fd, const std::string& path) {
  struct stat info;
  if (fstat(fd, &info) != 0) return Status::System("fstat", errno);
  if (S_ISCHR(info.st_mode)) return {};  // a terminal, /dev/null
  if (!S_ISREG(info.st_mode)) {
    return Status(StatusCode::kSystem,
                  path + " is not a regular file: another user may be reading it");
  }
  if (info.st_uid != geteuid() || info.st_nlink != 1) {
    return Status(StatusCode::kSystem,
                  path + " belongs to another user or has several hard links: remove it");
  }
  if (fchmod(fd, S_IRUSR | S_IWUSR) != 0) return Status::System("fchmod", errno);
  if (ftruncate(fd, 0) != 0) return Status::System("ftruncate", errno);
  return {};
}

}  // namespace

Result<OutputFile> CreateOutputFile(const std::string& path) {
  // O_NONBLOCK: a pipe at this path must not block the call.
  constexpr int kFlags = O_WRONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
  UniqueFd fd(open(path.c_str(), kFlags | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR));
  if (!fd.valid() && errno == EEXIST) {
    fd = UniqueFd(open(path.c_str(), kFlags));
    if (!fd.valid()) {
      return errno == ELOOP
                 ? Status(StatusCode::kSystem, path + " is a symbolic link, which is not followed")
                 : Status::System(path, errno);
    }
    HS_RETURN_IF_ERROR(TakeOver(fd.get(), path));
    if (fcntl(fd.get(), F_SETFL, 0) != 0) return Status::System("fcntl", errno);
  }
  if (!fd.valid()) return Status::System(path, errno);
  OutputFile file(fdopen(fd.get(), "w"));
  if (!file) return Status::System(path, errno);
  fd.Release();  // the stream closes it
  return file;
}

}  // namespace horoscale
