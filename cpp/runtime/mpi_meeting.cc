#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "platform/random.h"
#include "rendezvous/memory_store.h"
#include "rendezvous/store_client.h"
#include "runtime/meeting.h"
#include "runtime/mpi_launcher.h"

namespace horoscale {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
constexpr size_t kSecretBytes = 32;

// A text in a record of fixed size, as MPI's collectives want it.
using Record = std::array<char, 512>;

Result<Record> ToRecord(std::string_view text) {
  Record record = {};
  if (text.size() >= record.size()) {
    return Status::InvalidArgument("\"" + std::string(text.substr(0, 40)) + "…\" is longer than " +
                                   std::to_string(record.size() - 1) + " bytes");
  }
  std::copy(text.begin(), text.end(), record.begin());
  return record;
}

std::string FromRecord(const char* record) {
  return std::string(record, strnlen(record, sizeof(Record)));
}

// How rank 0 serves the store, or why it can't: what it tells the others.
struct Served {
  uint16_t port = 0;
  char secret[2 * kSecretBytes + 1] = {};
  char error[512] = {};
};

// What srun's users can do without any MPI.
std::string WithoutMpi(const MpiLauncher& launcher) {
  if (launcher.name != "srun") return "";
  return ". Or go without MPI: in the batch script, before srun, export "
         "HOROSCALE_RENDEZVOUS=$(scontrol show hostnames | head -n 1):PORT, with a port that is "
         "free on that host, and HOROSCALE_SECRET=$(openssl rand -hex 32)";
}

Status NoLibrary(const MpiLauncher& launcher, const Status& why) {
  return {StatusCode::kUnimplemented,
          launcher.name + " started this process as one of " + std::to_string(launcher.size) +
              " ranks (" + launcher.variable + "), but " + why.message() +
              "\nInstall the MPI of that launcher, start the job with horoscalerun -np N, or set "
              "HOROSCALE_RANK, HOROSCALE_SIZE, HOROSCALE_RENDEZVOUS and HOROSCALE_SECRET for each "
              "rank" +
              WithoutMpi(launcher)};
}

// A launcher and a library of different MPIs don't see each other: each rank would train alone.
Status CheckSingleton(const MpiLibrary& mpi) {
  int size = 0;
  HS_RETURN_IF_ERROR(mpi.Check(mpi.call().Comm_size(mpi.handles().comm_world, &size), "Comm_size"));
  const auto launcher = FindMpiLauncher(getenv);
  if (size != 1 || !launcher || launcher->size == 1) return {};
  return Status::InvalidArgument(
      launcher->name + " started this process as one of " + std::to_string(launcher->size) +
      " ranks (" + launcher->variable + "), but for the MPI library " + mpi.path() + " (" +
      mpi.version() +
      ") it is alone in MPI_COMM_WORLD: launcher and library belong to different MPIs. Start the "
      "job with the mpirun of that library, name the launcher's library in HOROSCALE_LIBMPI "
      "(MPI4PY_LIBMPI for mpi4py), or choose srun's plug-in (srun --mpi=list)" +
      WithoutMpi(*launcher));
}

Result<std::unique_ptr<MpiCommunicator>> CommunicatorOf(const MpiLibrary& mpi,
                                                        const JobOptions& options,
                                                        const Deadline& deadline) {
  if (options.ranks.empty()) {
    const MpiHandle comm = options.mpi_comm != 0 ? options.mpi_comm : mpi.handles().comm_world;
    return MpiCommunicator::Duplicate(mpi, comm, deadline);
  }
  int rank = 0;
  int size = 0;
  const MpiHandle world = mpi.handles().comm_world;
  HS_RETURN_IF_ERROR(mpi.Check(mpi.call().Comm_rank(world, &rank), "Comm_rank"));
  HS_RETURN_IF_ERROR(mpi.Check(mpi.call().Comm_size(world, &size), "Comm_size"));
  const auto position = PositionIn(options.ranks, rank, size);
  if (!position.ok()) return position.status();
  return MpiCommunicator::OfWorldRanks(mpi, options.ranks);
}

Result<std::vector<std::string>> ExchangeHosts(MpiCommunicator& comm, const std::string& host,
                                               const Deadline& deadline) {
  const auto record = ToRecord(host);
  if (!record.ok()) return record.status();
  const auto all = comm.AllGather(std::as_bytes(std::span(*record)), deadline);
  if (!all.ok()) return all.status();
  std::vector<std::string> hosts;
  for (size_t at = 0; at < all->size(); at += sizeof(Record)) {
    hosts.push_back(FromRecord(reinterpret_cast<const char*>(all->data() + at)));
  }
  return hosts;
}

Result<Served> ServeStore(std::unique_ptr<StoreServer>* server) {
  std::array<std::byte, kSecretBytes> random;
  HS_RETURN_IF_ERROR(FillRandom(random));
  Served served;
  for (size_t i = 0; i < random.size(); ++i) {
    const auto value = static_cast<unsigned>(random[i]);
    served.secret[2 * i] = "0123456789abcdef"[value >> 4];
    served.secret[2 * i + 1] = "0123456789abcdef"[value & 15];
  }
  StoreServerOptions options;
  options.host = kLoopback;
  options.secret = served.secret;
  auto started = StoreServer::Start(std::move(options));
  if (!started.ok()) return started.status();
  *server = started.TakeValue();
  served.port = (*server)->port();
  return served;
}

// All ranks are on one host: rank 0 serves them the store on loopback.
Status ShareStore(MpiCommunicator& comm, Meeting& meeting, const Deadline& deadline) {
  Served served;
  if (comm.rank() == 0) {
    auto started = ServeStore(&meeting.server);
    if (started.ok()) {
      served = *started;
    } else {
      started.status().message().copy(served.error, sizeof(served.error) - 1);
    }
  }
  HS_RETURN_IF_ERROR(comm.Broadcast(std::as_writable_bytes(std::span(&served, 1)), 0, deadline));
  if (served.port == 0) {
    return {StatusCode::kSystem, std::string("rank 0 can't serve the store: ") + served.error};
  }
  meeting.identity.rendezvous = {kLoopback, served.port};
  meeting.identity.serve = comm.rank() == 0;
  meeting.identity.secret = served.secret;
  auto client = StoreClient::Connect(kLoopback, served.port, served.secret, deadline.SecondsLeft());
  if (!client.ok()) return client.status();
  meeting.store = client.TakeValue();
  return {};
}

bool LauncherIsRunningMpi(const MpiLibrary& mpi) {
  int size = 1;
  return mpi.IsInitialized() && mpi.call().Comm_size(mpi.handles().comm_world, &size) == 0 &&
         size > 1;
}

}  // namespace

Result<const MpiLibrary*> ChooseMpi(const JobOptions& options, const VariableLookup& lookup,
                                    BackendChoice backend) {
  const auto controller = lookup("CONTROLLER");
  if (controller && controller->value != "mpi" && controller->value != "gloo") {
    return Status::InvalidArgument(controller->name + "=\"" + controller->value +
                                   "\" does not parse: expected mpi | gloo");
  }
  const bool over_store = controller ? controller->value == "gloo" : bool(lookup("RANK"));
  if (options.mpi_comm != 0 && over_store) {
    return Status::InvalidArgument(
        "hvd.init(comm) was given an MPI communicator, but this job's ranks were not started by "
        "MPI, for which each of them is alone: start the job with mpirun or horoscalerun --mpi");
  }
  if (over_store && backend == BackendChoice::kMpi) {
    return Status::InvalidArgument(
        "BACKEND=mpi, but MPI did not start this job's ranks: start it with mpirun or "
        "horoscalerun --mpi");
  }
  if (over_store || options.rank) return nullptr;
  const auto launcher = FindMpiLauncher(getenv);
  const bool needed = options.mpi_comm != 0 || controller || backend == BackendChoice::kMpi ||
                      (launcher && launcher->size > 1);
  if (!needed && !launcher && MappedFiles("libmpi").empty()) return nullptr;
  const auto mpi = MpiLibrary::Open();
  if (mpi.ok()) {
    return needed || launcher || LauncherIsRunningMpi(**mpi) ? *mpi : nullptr;
  }
  if (!needed) return nullptr;
  return launcher ? NoLibrary(*launcher, mpi.status()) : mpi.status();
}

Result<Meeting> MeetOverMpi(const MpiLibrary& mpi, const JobOptions& options, const Config& config,
                            std::string host, const Deadline& deadline) {
  const BackendChoice backend = config.backend;
  HS_RETURN_IF_ERROR(mpi.Initialize());
  HS_RETURN_IF_ERROR(CheckSingleton(mpi));
  auto made = CommunicatorOf(mpi, options, deadline);
  if (!made.ok()) return made.status();
  MpiCommunicator& comm = **made;
  Meeting meeting;
  meeting.mpi = &mpi;
  meeting.identity.rank = comm.rank();
  meeting.identity.size = comm.size();
  auto hosts = ExchangeHosts(comm, host, deadline);
  if (!hosts.ok()) return hosts.status();
  meeting.hosts = hosts.TakeValue();
  meeting.host = std::move(host);
  const bool one_host =
      std::count(meeting.hosts.begin(), meeting.hosts.end(), meeting.host) == comm.size();
  if (backend == BackendChoice::kMpi || (backend == BackendChoice::kAuto && !one_host)) {
    if (!config.deterministic_asked) {
      auto parent = MpiCommunicator::Duplicate(mpi, comm.handle(), deadline);
      if (!parent.ok()) return parent.status();
      meeting.parent = parent.TakeValue();
    }
    meeting.communicator = made.TakeValue();
    return meeting;
  }
  if (!one_host) {
    return Status::InvalidArgument(
        "BACKEND=native, but MPI started the ranks on several hosts, where it carries their data: "
        "leave BACKEND out");
  }
  if (comm.size() == 1) {
    meeting.store = std::make_unique<MemoryStore>();
    return meeting;
  }
  HS_RETURN_IF_ERROR(ShareStore(comm, meeting, deadline));
  return meeting;
}

}  // namespace horoscale
