#include "transport/mpi/mpi_library.h"

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "platform/function_loader.h"
#include "transport/mpi/mpi_places.h"

namespace horoscale {
namespace {

std::mutex mutex;  // guards the next two
// Never freed: callers keep pointers to it, and an exit handler finalizes MPI.
const MpiLibrary* opened = nullptr;
std::string& LibraryDirectory() {
  static auto* const directory = new std::string;
  return *directory;
}

// The process that has initialized MPI; a forked child must not finalize it.
std::atomic<pid_t> initialized_by{0};

void FinalizeAtExit() {
  if (initialized_by.load() != getpid()) return;
  if (!opened->IsFinalized()) opened->call().Finalize();
}

// The name of the first missing function, or null.
const char* LoadFunctions(const DynamicLibrary& library, MpiFunctions& f) {
  return FunctionLoader(library)
      .Load("MPI_Initialized", f.Initialized)
      .Load("MPI_Finalized", f.Finalized)
      .Load("MPI_Init_thread", f.Init_thread)
      .Load("MPI_Query_thread", f.Query_thread)
      .Load("MPI_Finalize", f.Finalize)
      .Load("MPI_Get_library_version", f.Get_library_version)
      .Load("MPI_Error_string", f.Error_string)
      .Load("MPI_Comm_rank", f.Comm_rank)
      .Load("MPI_Comm_size", f.Comm_size)
      .Load("MPI_Comm_group", f.Comm_group)
      .Load("MPI_Group_incl", f.Group_incl)
      .Load("MPI_Group_free", f.Group_free)
      .Load("MPI_Comm_create_group", f.Comm_create_group)
      .Load("MPI_Comm_test_inter", f.Comm_test_inter)
      .Load("MPI_Comm_idup", f.Comm_idup)
      .Load("MPI_Comm_set_errhandler", f.Comm_set_errhandler)
      .Load("MPI_Comm_free", f.Comm_free)
      .Load("MPI_Ibcast", f.Ibcast)
      .Load("MPI_Iallreduce", f.Iallreduce)
      .Load("MPI_Ireduce_scatter", f.Ireduce_scatter)
      .Load("MPI_Iallgather", f.Iallgather)
      .Load("MPI_Isend", f.Isend)
      .Load("MPI_Irecv", f.Irecv)
      .Load("MPI_Iprobe", f.Iprobe)
      .Load("MPI_Get_count", f.Get_count)
      .Load("MPI_Test", f.Test)
      .missing();
}

const MpiConstants& ConstantsOf(const DynamicLibrary& library) {
  if (library.Find("ompi_mpi_comm_world") != nullptr) return kOpenMpiConstants;
  // MPICH has the function in both of its ABIs; only that of the standard knows a version.
  if (auto* const abi_version = library.FindFunction<int(int*, int*)>("MPI_Abi_get_version")) {
    int major = 0;
    int minor = 0;
    if (abi_version(&major, &minor) == 0 && major > 0) return kStandardConstants;
  }
  return kMpichConstants;
}

MpiHandle Resolve(const DynamicLibrary& library, const MpiConstant& constant) {
  if (constant.symbol == nullptr) return constant.value;
  return reinterpret_cast<MpiHandle>(library.Find(constant.symbol));
}

MpiHandles ResolveAll(const DynamicLibrary& library, const MpiConstants& constants) {
  const auto of = [&](const MpiConstant& constant) { return Resolve(library, constant); };
  return {.comm_world = of(constants.comm_world),
          .comm_null = of(constants.comm_null),
          .request_null = of(constants.request_null),
          .byte = of(constants.byte),
          .errors_return = of(constants.errors_return),
          .uint8 = of(constants.uint8),
          .int8 = of(constants.int8),
          .uint16 = of(constants.uint16),
          .int16 = of(constants.int16),
          .int32 = of(constants.int32),
          .int64 = of(constants.int64),
          .float32 = of(constants.float32),
          .float64 = of(constants.float64),
          .sum = of(constants.sum),
          .min = of(constants.min),
          .max = of(constants.max),
          .product = of(constants.product)};
}

}  // namespace

Result<MpiLibrary> MpiLibrary::Adopt(const DynamicLibrary& library) {
  MpiFunctions functions = {};
  if (const char* const missing = LoadFunctions(library, functions)) {
    return Status(StatusCode::kUnimplemented,
                  std::string("it has no ") + missing + ": MPI 3 or newer is required");
  }
  const MpiConstants& constants = ConstantsOf(library);
  MpiLibrary mpi(functions, constants, ResolveAll(library, constants));
  mpi.path_ = DynamicLibrary::FileOf(reinterpret_cast<const void*>(mpi.functions_.Init_thread));
  std::string text(8192, '\0');  // the largest MPI_MAX_LIBRARY_VERSION_STRING
  int length = 0;
  if (mpi.functions_.Get_library_version(text.data(), &length) == 0) {
    mpi.version_ = text.substr(0, text.find_first_of(std::string("\r\n\0", 3)));
  }
  return mpi;
}

// A process may have loaded two libraries, for example one only to query its version and mpi4py's;
// use the initialized one.
Result<MpiLibrary> MpiLibrary::AdoptLoaded() {
  std::optional<MpiLibrary> first;
  for (const std::string& path : MappedFiles("libmpi")) {
    auto library = DynamicLibrary::OpenLoaded(path);
    if (!library.ok()) continue;
    auto adopted = Adopt(*library);
    if (!adopted.ok()) continue;
    if (adopted->IsInitialized()) return adopted;
    if (!first) first = adopted.TakeValue();
  }
  if (first) return *std::move(first);
  return Status(StatusCode::kUnimplemented, "no MPI library is loaded");
}

Result<MpiLibrary> MpiLibrary::Find() {
  std::string tried;
  for (const std::string& name : MpiLibraryNames(LibraryDirectory())) {
    auto library = DynamicLibrary::Open(name);
    if (!library.ok()) {
      tried += "\n  " + library.status().message();
      continue;
    }
    auto adopted = Adopt(*library);
    if (adopted.ok()) return adopted;
    tried += "\n  " + name + ": " + adopted.status().message();
  }
  return Status(StatusCode::kUnimplemented,
                "can't load the MPI library; set HOROSCALE_LIBMPI to its path. Tried:" + tried);
}

Result<const MpiLibrary*> MpiLibrary::Open() {
  std::lock_guard lock(mutex);
  if (opened != nullptr && (opened->IsInitialized() || opened->IsFinalized())) return opened;
  auto found = AdoptLoaded();
  if (!found.ok()) found = Find();
  if (!found.ok()) return found.status();
  if (opened == nullptr || opened->path() != found->path()) {
    opened = new MpiLibrary(found.TakeValue());
  }
  return opened;
}

void MpiLibrary::SetLibraryDirectory(std::string directory) {
  std::lock_guard lock(mutex);
  LibraryDirectory() = std::move(directory);
}

Status MpiLibrary::Initialize() const {
  if (IsFinalized()) {
    return {StatusCode::kInvalidArgument,
            "MPI has been finalized in this process and can't be initialized again: call "
            "hvd.init() before MPI_Finalize"};
  }
  int provided = 0;
  if (!IsInitialized()) {
    HS_RETURN_IF_ERROR(
        Check(functions_.Init_thread(nullptr, nullptr, constants_->thread_multiple, &provided),
              "Init_thread"));
    if (initialized_by.exchange(getpid()) == 0) std::atexit(FinalizeAtExit);
  }
  HS_RETURN_IF_ERROR(Check(functions_.Query_thread(&provided), "Query_thread"));
  if (provided >= constants_->thread_multiple) return {};
  return {StatusCode::kInvalidArgument,
          "MPI was initialized without MPI_THREAD_MULTIPLE, which horoscale requires because its "
          "progress thread calls MPI too: keep the defaults of mpi4py.rc.threads and "
          "mpi4py.rc.thread_level, call MPI_Init_thread with MPI_THREAD_MULTIPLE, or call "
          "hvd.init() first (" +
              path_ + ", " + version_ + ")"};
}

void MpiLibrary::ExitWithoutFinalize() const { initialized_by.store(-1); }

void MpiLibrary::Keep(std::shared_ptr<const void> memory) {
  static std::mutex kept_mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  std::lock_guard lock(kept_mutex);
  kept->push_back(std::move(memory));
}

bool MpiLibrary::IsInitialized() const {
  int flag = 0;
  functions_.Initialized(&flag);
  return flag != 0 && !IsFinalized();
}

bool MpiLibrary::IsFinalized() const {
  int flag = 0;
  functions_.Finalized(&flag);
  return flag != 0;
}

Status MpiLibrary::Check(int code, const char* function) const {
  if (code == 0) return {};
  std::string text(8192, '\0');
  int length = 0;
  if (functions_.Error_string(code, text.data(), &length) != 0) length = 0;
  text.resize(static_cast<size_t>(length));
  return {StatusCode::kSystem, std::string("MPI_") + function + ": " + text};
}

}  // namespace horoscale
