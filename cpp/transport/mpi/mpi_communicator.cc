#include "transport/mpi/mpi_communicator.h"

#include <time.h>

#include <atomic>
#include <cstring>
#include <string>
#include <utility>

#include "platform/wait.h"

namespace horoscale {
namespace {

constexpr double kPollSeconds = 100e-6;
constexpr int kCreateGroupTag = 0x4853;  // "HS"; distinguishes it from the user's calls

std::atomic<int> living{0};

// The memory of a nonblocking operation until it is complete.
struct Pending {
  MpiHandle request = 0;
  MpiHandle communicator = 0;
  std::vector<std::byte> in;
  std::vector<std::byte> out;
};

Status Wait(const MpiLibrary& mpi, std::unique_ptr<Pending>& pending, const Deadline& deadline) {
  for (;;) {
    int done = 0;
    MpiStatus status;
    HS_RETURN_IF_ERROR(mpi.Check(mpi.call().Test(&pending->request, &done, &status), "Test"));
    if (done != 0) return {};
    if (deadline.Passed()) break;
    const timespec time = ToTimespec(kPollSeconds);
    nanosleep(&time, nullptr);
  }
  // MPI can't cancel a collective: it may still write, and finalizing would wait for it.
  MpiLibrary::Keep(std::move(pending));
  mpi.ExitWithoutFinalize();
  return Status::Timeout(
      "not all ranks of the MPI job called hvd.init() in time (START_TIMEOUT sets the limit)");
}

}  // namespace

Result<std::unique_ptr<MpiCommunicator>> MpiCommunicator::Duplicate(const MpiLibrary& mpi,
                                                                    MpiHandle comm,
                                                                    const Deadline& deadline) {
  if (comm == mpi.handles().comm_null) {
    return Status::InvalidArgument(
        "hvd.init(comm): comm is MPI.COMM_NULL on this rank. A rank that is not in the "
        "communicator must not call hvd.init()");
  }
  int inter = 0;
  HS_RETURN_IF_ERROR(mpi.Check(mpi.call().Comm_test_inter(comm, &inter), "Comm_test_inter"));
  if (inter != 0) {
    return Status::InvalidArgument(
        "hvd.init(comm): comm is an intercommunicator; pass an intracommunicator, such as the "
        "result of comm.Merge()");
  }
  auto pending = std::make_unique<Pending>();
  HS_RETURN_IF_ERROR(mpi.Check(
      mpi.call().Comm_idup(comm, &pending->communicator, &pending->request), "Comm_idup"));
  HS_RETURN_IF_ERROR(Wait(mpi, pending, deadline));
  return Adopt(mpi, pending->communicator);
}

Result<std::unique_ptr<MpiCommunicator>> MpiCommunicator::OfWorldRanks(const MpiLibrary& mpi,
                                                                       std::span<const int> ranks) {
  return OfRanksOf(mpi, mpi.handles().comm_world, ranks);
}

Result<std::unique_ptr<MpiCommunicator>> MpiCommunicator::OfRanks(const MpiCommunicator& parent,
                                                                  std::span<const int> ranks) {
  return OfRanksOf(parent.mpi_, parent.handle_, ranks);
}

Result<std::unique_ptr<MpiCommunicator>> MpiCommunicator::OfRanksOf(const MpiLibrary& mpi,
                                                                    MpiHandle parent,
                                                                    std::span<const int> ranks) {
  const MpiFunctions& call = mpi.call();
  MpiHandle all = 0;
  MpiHandle group = 0;
  MpiHandle communicator = 0;
  HS_RETURN_IF_ERROR(mpi.Check(call.Comm_group(parent, &all), "Comm_group"));
  const int count = static_cast<int>(ranks.size());
  Status made = mpi.Check(call.Group_incl(all, count, ranks.data(), &group), "Group_incl");
  if (made.ok()) {
    made = mpi.Check(call.Comm_create_group(parent, group, kCreateGroupTag, &communicator),
                     "Comm_create_group");
    call.Group_free(&group);
  }
  call.Group_free(&all);
  HS_RETURN_IF_ERROR(made);
  return Adopt(mpi, communicator);
}

Result<std::unique_ptr<MpiCommunicator>> MpiCommunicator::Adopt(const MpiLibrary& mpi,
                                                                MpiHandle handle) {
  std::unique_ptr<MpiCommunicator> own(new MpiCommunicator(mpi, handle));
  const MpiFunctions& call = mpi.call();
  HS_RETURN_IF_ERROR(mpi.Check(call.Comm_set_errhandler(handle, mpi.handles().errors_return),
                               "Comm_set_errhandler"));
  HS_RETURN_IF_ERROR(mpi.Check(call.Comm_rank(handle, &own->rank_), "Comm_rank"));
  HS_RETURN_IF_ERROR(mpi.Check(call.Comm_size(handle, &own->size_), "Comm_size"));
  return own;
}

MpiCommunicator::MpiCommunicator(const MpiLibrary& mpi, MpiHandle handle)
    : mpi_(mpi), handle_(handle) {
  living.fetch_add(1);
}

MpiCommunicator::~MpiCommunicator() {
  if (is_kept_) return;
  if (!mpi_.IsFinalized()) mpi_.call().Comm_free(&handle_);
  living.fetch_sub(1);
}

int MpiCommunicator::Living() { return living.load(); }

Status MpiCommunicator::Broadcast(std::span<std::byte> data, int root, const Deadline& deadline) {
  auto pending = std::make_unique<Pending>();
  pending->out.assign(data.begin(), data.end());
  HS_RETURN_IF_ERROR(
      mpi_.Check(mpi_.call().Ibcast(pending->out.data(), static_cast<int>(data.size()),
                                    mpi_.handles().byte, root, handle_, &pending->request),
                 "Ibcast"));
  if (Status waited = Wait(mpi_, pending, deadline); !waited.ok()) {
    Keep();
    return waited;
  }
  std::memcpy(data.data(), pending->out.data(), data.size());
  return {};
}

Result<std::vector<std::byte>> MpiCommunicator::AllGather(std::span<const std::byte> own,
                                                          const Deadline& deadline) {
  auto pending = std::make_unique<Pending>();
  pending->in.assign(own.begin(), own.end());
  pending->out.resize(own.size() * static_cast<size_t>(size_));
  const int count = static_cast<int>(own.size());
  const MpiHandle byte = mpi_.handles().byte;
  HS_RETURN_IF_ERROR(
      mpi_.Check(mpi_.call().Iallgather(pending->in.data(), count, byte, pending->out.data(), count,
                                        byte, handle_, &pending->request),
                 "Iallgather"));
  if (Status waited = Wait(mpi_, pending, deadline); !waited.ok()) {
    Keep();
    return waited;
  }
  return std::move(pending->out);
}

}  // namespace horoscale
