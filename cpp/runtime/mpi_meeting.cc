#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/rank_list.h"
#include "platform/tcp_socket.h"
#include "rendezvous/memory_store.h"
#include "rendezvous/secret.h"
#include "rendezvous/store_client.h"
#include "runtime/meeting.h"
#include "runtime/mpi_launcher.h"
#include "runtime/neighbours.h"
#include "runtime/same_version.h"

namespace horoscale {
namespace {

constexpr char kLoopback[] = "127.0.0.1";
// A text in a fixed-size record, as MPI's collectives require.
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

// Rank 0's message to the others: the address of the store, or why it can't be served.
struct Served {
  uint16_t port = 0;
  char addresses[1024] = {};  // separated by newlines, the likeliest first
  char secret[kNewSecretCharacters + 1] = {};
  char error[512] = {};
};

// A hint for users of srun without MPI.
std::string WithoutMpi(const MpiLauncher& launcher) {
  if (launcher.name != "srun") return "";
  return ". Or run without MPI: with HOROSCALE_CONTROLLER=gloo, ranks that srun started connect "
         "directly (docs/slurm.md)";
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

// A launcher and a library of different MPI implementations do not see each other: each rank would
// train alone.
Status CheckSingleton(const MpiLibrary& mpi) {
  int size = 0;
  HS_RETURN_IF_ERROR(mpi.Check(mpi.call().Comm_size(mpi.handles().comm_world, &size), "Comm_size"));
  const auto launcher = FindMpiLauncher(getenv);
  if (size != 1 || !launcher || launcher->size == 1) return {};
  return Status::InvalidArgument(
      launcher->name + " started this process as one of " + std::to_string(launcher->size) +
      " ranks (" + launcher->variable + "), but with the MPI library " + mpi.path() + " (" +
      mpi.version() +
      ") it is alone in MPI_COMM_WORLD: the launcher and the library belong to different MPI "
      "implementations. Start the job with the mpirun of that library, set HOROSCALE_LIBMPI (for "
      "mpi4py, MPI4PY_LIBMPI) to the launcher's library, or select srun's MPI plug-in (srun "
      "--mpi=list)" +
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

Result<std::vector<std::string>> ExchangeCards(MpiCommunicator& comm, const std::string& own,
                                               const Deadline& deadline) {
  const auto record = ToRecord(own);
  if (!record.ok()) return record.status();
  const auto all = comm.AllGather(std::as_bytes(std::span(*record)), deadline);
  if (!all.ok()) return all.status();
  std::vector<std::string> cards;
  for (size_t at = 0; at < all->size(); at += sizeof(Record)) {
    cards.push_back(FromRecord(reinterpret_cast<const char*>(all->data() + at)));
  }
  return cards;
}

Status CheckVersions(MpiCommunicator& comm, const Deadline& deadline) {
  const auto all = comm.AllGather(std::as_bytes(std::span(&kWireVersion, 1)), deadline);
  if (!all.ok()) return all.status();
  std::vector<uint32_t> by_rank(all->size() / sizeof(uint32_t));
  std::memcpy(by_rank.data(), all->data(), all->size());
  return CheckSameVersion(by_rank);
}

// Ranks that disagree would wait for each other, or reject each other repeatedly.
Status CheckSameEncryption(MpiCommunicator& comm, const Config& config, const Deadline& deadline) {
  const uint8_t own = config.encrypt ? 1 : 0;
  const auto all = comm.AllGather(std::as_bytes(std::span(&own, 1)), deadline);
  if (!all.ok()) return all.status();
  std::vector<int> with;
  for (size_t rank = 0; rank < all->size(); ++rank) {
    if ((*all)[rank] != std::byte{0}) with.push_back(static_cast<int>(rank));
  }
  if (with.empty() || with.size() == all->size()) return {};
  return Status::InvalidArgument("ENCRYPT=1 is set only on " + RankList(with) + " of " +
                                 std::to_string(all->size()) +
                                 " ranks: use the same setting for all ranks");
}

// Finds out which ranks share memory.
Status FindHosts(MpiCommunicator& comm, const std::string& host, Meeting& meeting,
                 const Deadline& deadline) {
  const auto self = Neighbours::Create();
  if (!self.ok()) return self.status();
  const auto cards = ExchangeCards(comm, self->card() + "\n" + host, deadline);
  if (!cards.ok()) return cards.status();
  std::map<int, std::string> near;  // of hosts with this name
  for (size_t rank = 0; rank < cards->size(); ++rank) {
    const std::string& card = (*cards)[rank];
    const size_t end = card.find('\n');
    if (card.substr(end + 1) == host) near.emplace(static_cast<int>(rank), card.substr(0, end));
  }
  const int own = Neighbours::FindLowest(near, comm.rank(), host, deadline, &meeting.notice);
  const auto all = comm.AllGather(std::as_bytes(std::span(&own, 1)), deadline);
  if (!all.ok()) return all.status();
  std::vector<int> lowest(all->size() / sizeof(int));
  std::memcpy(lowest.data(), all->data(), all->size());
  auto hosts = HostsOf(lowest);
  if (!hosts.ok()) return hosts.status();
  meeting.hosts = hosts.TakeValue();
  return {};
}

// The addresses at which others may reach rank 0; loopback if all are on its host.
Result<std::vector<std::string>> ServerAddresses(bool one_host, const Config& config) {
  if (one_host) return std::vector<std::string>{kLoopback};
  auto addresses = MachineAddresses(config.network_interfaces);
  if (!addresses.ok()) return addresses.status();
  // Last, for ranks that only play several hosts on one machine.
  if (config.network_interfaces.empty()) addresses->insert(addresses->end(), {kLoopback, "::1"});
  if (addresses->empty()) {
    return Status::InvalidArgument("the selected network interfaces have no address");
  }
  return addresses;
}

// Joins the addresses with newlines, as many as fit.
std::string LinesOf(const std::vector<std::string>& addresses) {
  std::string text;
  for (const std::string& address : addresses) {
    if (text.size() + 1 + address.size() >= sizeof(Served::addresses)) break;
    text += (text.empty() ? "" : "\n") + address;
  }
  return text;
}

Result<Served> ServeStore(bool one_host, const Config& config,
                          std::unique_ptr<StoreServer>* server) {
  const auto secret = NewSecret();
  if (!secret.ok()) return secret.status();
  Served served;
  const auto addresses = ServerAddresses(one_host, config);
  if (!addresses.ok()) return addresses.status();
  LinesOf(*addresses).copy(served.addresses, sizeof(served.addresses) - 1);
  secret->copy(served.secret, kNewSecretCharacters);
  StoreServerOptions options;
  const bool everywhere = !one_host && config.network_interfaces.empty();
  options.hosts = everywhere ? std::vector<std::string>{"::"} : *addresses;
  options.secret = served.secret;
  options.encrypt = config.encrypt;
  auto started = StoreServer::Start(options);
  if (!started.ok() && everywhere) {
    options.hosts = {"0.0.0.0"};  // machines may lack IPv6
    started = StoreServer::Start(options);
  }
  if (!started.ok()) return started.status();
  *server = started.TakeValue();
  served.port = (*server)->port();
  return served;
}

// Rank 0 serves the store, and broadcasts its address.
Status ShareStore(MpiCommunicator& comm, bool one_host, const Config& config,
                  const std::string& job, Meeting& meeting, const Deadline& deadline) {
  Served served;
  if (comm.rank() == 0) {
    auto started = ServeStore(one_host, config, &meeting.server);
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
  meeting.identity.serve = comm.rank() == 0;
  meeting.identity.secret = served.secret;
  std::istringstream lines(served.addresses);
  std::vector<std::string> addresses;
  for (std::string line; std::getline(lines, line);) addresses.push_back(line);
  auto client = StoreClient::ConnectToAny(addresses, served.port, served.secret,
                                          deadline.SecondsLeft(), config.encrypt);
  if (!client.ok()) {
    return {client.status().code(),
            "rank " + std::to_string(comm.rank()) +
                " can't reach the store of rank 0 (select the network with NETWORK_INTERFACE): " +
                client.status().message()};
  }
  if (const auto address = (*client)->LocalAddress(); address.ok()) meeting.address = *address;
  auto store =
      StartingStore::Join(client.TakeValue(), {job, comm.rank(), comm.size(), "", ""}, deadline);
  if (!store.ok()) return store.status();
  meeting.store = store.TakeValue();
  return {};
}

Status MpiDoesNotEncrypt() {
  return Status::InvalidArgument(
      "ENCRYPT=1, but these ranks communicate between hosts over MPI, which horoscale can't "
      "encrypt: set BACKEND=native, start the job with horoscalerun, or unset ENCRYPT if MPI or "
      "its network encrypts");
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
        "hvd.init(comm) was called with an MPI communicator, but MPI did not start this job's "
        "ranks, so each of them is alone in MPI_COMM_WORLD: start the job with mpirun or "
        "horoscalerun --mpi");
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
                            const std::string& host, const Deadline& deadline) {
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
  HS_RETURN_IF_ERROR(CheckVersions(comm, deadline));
  HS_RETURN_IF_ERROR(CheckSameEncryption(comm, config, deadline));
  HS_RETURN_IF_ERROR(FindHosts(comm, host, meeting, deadline));
  const bool one_host =
      std::count(meeting.hosts.begin(), meeting.hosts.end(), meeting.hosts[0]) == comm.size();
  if (backend == BackendChoice::kMpi || (backend != BackendChoice::kNative && !one_host)) {
    if (config.encrypt && !one_host) return MpiDoesNotEncrypt();
    if (!config.deterministic_asked) {
      auto parent = MpiCommunicator::Duplicate(mpi, comm.handle(), deadline);
      if (!parent.ok()) return parent.status();
      meeting.parent = parent.TakeValue();
    }
    meeting.communicator = made.TakeValue();
    return meeting;
  }
  if (comm.size() == 1) {
    meeting.store =
        std::make_unique<StartingStore>(std::make_unique<MemoryStore>(), JobKey(options), 0);
    return meeting;
  }
  HS_RETURN_IF_ERROR(ShareStore(comm, one_host, config, JobKey(options), meeting, deadline));
  return meeting;
}

}  // namespace horoscale
