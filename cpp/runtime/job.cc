#include "runtime/job.h"

#include <algorithm>
#include <utility>

#include "platform/deadline.h"
#include "platform/descriptors.h"
#include "platform/environment.h"
#include "platform/log.h"
#include "platform/process.h"
#include "platform/state_signal.h"
#include "runtime/meeting.h"
#include "transport/hosts/hosts_transport.h"
#include "transport/mpi/mpi_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/tcp/backbone.h"
#include "transport/tcp/tcp_mesh.h"

namespace horoscale {
namespace {

// No rank returns from init() before all ranks have all of their links, so that a rank that exits
// early, or its store, is not missing while another rank starts.
Status MeetAll(Runtime& runtime, double seconds) {
  const auto barrier = std::make_shared<Operation>();
  barrier->request.name = "horoscale.init";
  barrier->request.signature.kind = OpKind::kBarrier;
  HS_RETURN_IF_ERROR(runtime.Enqueue(barrier, true));
  return runtime.Wait(barrier, seconds);
}

Result<Meeting> Meet(const JobOptions& options, const Config& config, const Deadline& deadline) {
  const auto host_variable = FindVariable("HOSTNAME");
  const std::string host =
      HostIdentity(host_variable ? std::optional<std::string>(host_variable->value) : std::nullopt);
  const auto mpi = ChooseMpi(options, FindVariable, config.backend);
  if (!mpi.ok()) return mpi.status();
  if (*mpi != nullptr) return MeetOverMpi(**mpi, options, config, host, deadline);
  return MeetOverStore(options, config, FindVariable, host, deadline);
}

// More streams use more cores, and networks that limit single connections; but a rank may have them
// to every rank of the other hosts.
uint32_t DataStreams(const Config& config, int size) {
  constexpr int64_t kMostOfRank = 256;
  if (config.tcp_streams > 0) return static_cast<uint32_t>(config.tcp_streams);
  return static_cast<uint32_t>(std::clamp<int64_t>(kMostOfRank / size, 1, MessageExchange::kBanks));
}

Result<std::unique_ptr<Transport>> MakeTransport(Meeting& meeting, const Config& config,
                                                 StartingStore* store, const Deadline& deadline) {
  if (meeting.communicator != nullptr) {
    auto mpi = MpiTransport::Create(std::move(meeting.communicator), NumberHosts(meeting.hosts));
    if (!mpi.ok()) return mpi.status();
    return std::unique_ptr<Transport>(mpi.TakeValue());
  }
  const Identity& identity = meeting.identity;
  const std::vector<uint32_t> hosts = NumberHosts(meeting.hosts);
  const auto look = [store] { return store->Look(); };
  const auto explain = [store](const Status& failure) { return store->Explain(failure); };
  ShmConfig shm;
  shm.rank = identity.rank;
  shm.size = identity.size;
  shm.arena_bytes = static_cast<size_t>(config.arena_bytes);
  shm.mesh = {{}, store->prefix(), identity.secret, deadline.SecondsLeft(), look, explain};
  TcpMeshConfig tcp;
  tcp.terms = {identity.rank,  store->prefix(),        identity.secret,
               config.encrypt, config.silence_seconds, DataStreams(config, identity.size)};
  // If all ranks reach the store over loopback, there are no other hosts.
  tcp.door.loopback_only = meeting.on_loopback && config.network_interfaces.empty();
  tcp.door.interfaces = config.network_interfaces;
  tcp.door.first_address = meeting.address;
  tcp.size = identity.size;
  tcp.at_once = BackbonePeers(identity.rank, hosts);
  tcp.look = look;
  tcp.explain = explain;
  for (int rank = 0; rank < identity.size; ++rank) {
    const bool near = hosts[static_cast<size_t>(rank)] == hosts[static_cast<size_t>(identity.rank)];
    (near ? shm.mesh.ranks : tcp.peers).push_back(rank);
  }
  auto local = ShmTransport::Create(shm, *store);
  if (!local.ok()) return explain(local.status());
  if (tcp.peers.empty()) return std::unique_ptr<Transport>(local.TakeValue());
  if (config.encrypt && config.backend == BackendChoice::kNccl) {
    return explain(Status::InvalidArgument(
        "ENCRYPT=1 and BACKEND=nccl can't be combined, because NCCL's traffic between hosts is not "
        "encrypted; unset BACKEND, so that CUDA tensors go through host memory, encrypted"));
  }
  tcp.seconds = deadline.SecondsLeft();
  auto mesh = ConnectTcpMesh(tcp, *store);
  if (!mesh.ok()) return explain(mesh.status());
  const bool all_streams = config.tcp_streams > 0;
  auto remote =
      TcpTransport::Create(identity.rank, mesh.TakeValue(), config.silence_seconds, all_streams);
  if (!remote.ok()) return explain(remote.status());
  return HostsTransport::Create(local.TakeValue(), remote.TakeValue(), hosts);
}

}  // namespace

Result<std::unique_ptr<Job>> Job::Join(const JobOptions& options) {
  auto config = ReadConfig(FindVariable);
  if (!config.ok()) return config.status();
  const Deadline deadline = Deadline::After(config->start_timeout_seconds);
  RaiseDescriptorLimit();
  auto meeting = Meet(options, *config, deadline);
  if (!meeting.ok()) return meeting.status();
  const Identity& identity = meeting->identity;
  ConfigureLog(config->log_level, config->log_time, identity.rank);
  if (!meeting->notice.empty()) Log(LogLevel::kWarning, meeting->notice);
  if (config->state_signal && !TakeStateSignal()) {
    Log(LogLevel::kInfo,
        "this process already has a handler for SIGUSR2, so the signal does not print this rank's "
        "state");
  }

  std::unique_ptr<Job> job(new Job);
  job->server_ = std::move(meeting->server);
  job->store_ = std::move(meeting->store);
  job->mpi_ = meeting->mpi;

  auto transport = MakeTransport(*meeting, *config, job->store_.get(), deadline);
  if (!transport.ok()) return transport.status();

  std::unique_ptr<MpiCommunicators> collectives;
  if (meeting->parent != nullptr) {
    auto made = MpiCommunicators::Create(std::move(meeting->parent));
    if (!made.ok()) return made.status();
    collectives = made.TakeValue();
  }
  const std::string timeline_path = config->timeline_path;
  const bool mark_cycles = config->timeline_mark_cycles;
  job->runtime_ = std::make_unique<Runtime>(
      config.TakeValue(), TopologyOf(identity.rank, meeting->hosts), transport.TakeValue(),
      Runtime::Driver::kThread, std::move(collectives));
  HS_RETURN_IF_ERROR(MeetAll(*job->runtime_, deadline.SecondsLeft()));
  if (!timeline_path.empty()) {
    HS_RETURN_IF_ERROR(job->runtime_->StartTimeline(timeline_path, mark_cycles));
  }
  return job;
}

void Job::Shutdown(const std::string& reason) {
  if (mpi_ != nullptr && !reason.empty()) mpi_->ExitWithoutFinalize();
  runtime_->Shutdown(reason);
}

}  // namespace horoscale
