# The project's tasks. `make help` lists them.
#
# Python packages are installed into .venv, and everything compiled for tests is in build/. Nothing is installed
# into the system. Targets that are up to date do nothing, so you can run any of them again at any time.

MAKEFLAGS += --no-print-directory
# Hundreds of test processes import PyTorch. Without cached bytecode each would compile it again, which takes four seconds.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
# MXNet has no wheels that work with newer ones.
MXNET_PYTHON ?= $(firstword $(shell command -v python3.11) $(shell command -v python3.10) $(PYTHON))
VENV   ?= .venv
BUILD  ?= build
JOBS   ?= $(shell nproc)
# ON compiles everything faster. OFF is faster after changes to a few files, and detects missing includes.
UNITY  ?= ON

BIN   := $(VENV)/bin
CMAKE := $(BIN)/cmake
# Runs in a folder without horoscale/, so that the installed package is tested.
PYTEST := cd tests && $(abspath $(BIN))/pytest --durations=10 --durations-min=5
CTEST := $(BIN)/ctest --output-on-failure --no-tests=error -j $(JOBS)

CONFIGURE = $(CMAKE) -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
            -DHOROSCALE_BUILD_TESTS=ON -DHOROSCALE_WERROR=ON -DHOROSCALE_UNITY=$(UNITY)
# Release with assertions: tests run the same code as users, plus its internal checks.
RELEASE   = -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -UNDEBUG"
CLANG    := $(or $(shell command -v clang++-14),$(shell command -v clang++))
SANITIZED = -DCMAKE_CXX_COMPILER=$(CLANG) -DCMAKE_C_COMPILER=$(subst clang++,clang,$(CLANG)) \
            -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1"

# The sources of the installed package.
SOURCES := setup.py pyproject.toml CMakeLists.txt $(shell find cmake cpp horoscale -type f \
             -not -name '*.pyc' -not -name '*.so')
CPP_SOURCES := $(shell find CMakeLists.txt cmake cpp tests/cpp -type f)

# Prints the folder of a Python's packages.
PRINT_PACKAGES := import sysconfig; print(sysconfig.get_path("purelib"))

FUZZ_SECONDS ?= 10
REAL ?= 200
ELASTIC ?= 200
SIMULATED ?= 10000
WHEELS ?= x86_64 aarch64
ZIG_VERSION ?= 0.15.2
NCCL_VERSION ?= 2.32.3

.DEFAULT_GOAL := help
.PHONY: help demo test check bench bench-elastic docs docs-site tuning-table python build cpp-test arm64 sanitize asan tsan fuzz faults models lint \
         python-single python-parallel python-integration python-mpi python-nccl python-status python-tensorflow \
         python-lightning python-mxnet python-slurm python-ray python-spark engines torch-libraries wheel python-wheel release wheel-check torch-check clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---------------------------------------------------------------- the two commands in the README

demo: $(VENV)/.demo  ## train a small network on 2 ranks; installs its dependencies
	@echo "== horoscalerun -np 2 python examples/torch_digits.py"
	@$(BIN)/horoscalerun -np 2 $(BIN)/python examples/torch_digits.py

test:  ## all tests, in the order of CI
	@bash .ci/run stages

# ---------------------------------------------------------------- during development

check: lint $(BUILD)/release/.built $(VENV)/.test  ## formatting, types, unit tests, simulator: under 2 minutes
	$(CTEST) --test-dir $(BUILD)/release -LE slow
	$(PYTEST) -q python/single

lint: $(VENV)/.test  ## clang-format, ruff and mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cc' '*.h' '*.c')
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test  ## all benchmarks, compared with other libraries, and which aims are reached: 20 minutes on an idle machine
	$(BIN)/python benchmarks/report.py --peer-venv $(VENV)-peers --output $(BUILD)/bench

bench-elastic: $(VENV)/.test  ## how long elastic jobs pause after a fault, with a picture of a recovery: 20 minutes on an idle machine
	mkdir -p $(BUILD)/bench
	$(BIN)/python benchmarks/elastic.py --json $(BUILD)/bench/elastic.json --picture $(BUILD)/bench/recovery.svg

docs-site: $(VENV)/.docs  ## the documentation site, in build/site; warnings are errors
	$(BIN)/sphinx-build -q --fail-on-warning --keep-going -d $(BUILD)/site-cache docs $(BUILD)/site
	@echo "== $(BUILD)/site/index.html"

tuning-table: $(BUILD)/release/.built  ## print the table of docs/tuning.md: what the tuner chooses for three models and twelve networks
	@$(BUILD)/release/tests/cpp/tuning_table

docs: $(VENV)/.test  ## write the pages that are generated from the code
	$(BIN)/python docs/generate_configuration.py

# ---------------------------------------------------------------- the stages of CI

python: $(VENV)/.test  ## install the package and its test dependencies into .venv

build: $(VENV)/.test $(BUILD)/release/.built  ## compile everything, including the tests

cpp-test: $(BUILD)/release/.built  ## C++ tests, compiled with the system's compiler
	$(CTEST) --test-dir $(BUILD)/release

sanitize: asan tsan  ## C++ tests with the sanitizers

arm64: $(BUILD)/arm64/.built  ## tests of the arithmetic on arm64: cross-compiled, run in qemu
	$(CTEST) --test-dir $(BUILD)/arm64

asan: $(BUILD)/asan/.built  ## C++ tests with AddressSanitizer and UndefinedBehaviorSanitizer
	HOROSCALE_SIM_SEEDS=200 HOROSCALE_FAULT_SEEDS=2000 $(CTEST) --test-dir $(BUILD)/asan

tsan: $(BUILD)/tsan/.built  ## C++ tests with ThreadSanitizer, with ranks as threads
	$(CTEST) --test-dir $(BUILD)/tsan

fuzz: $(BUILD)/asan/.built  ## run the fuzzer of every decoder for FUZZ_SECONDS (10)
	@ls $(BUILD)/asan/tests/cpp/*_fuzzer | xargs -P $(JOBS) -I FUZZER sh -c '\
	  FUZZER -max_total_time=$(FUZZ_SECONDS) -timeout=5 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
	    >FUZZER.log 2>&1; status=$$?; echo "== FUZZER"; cat FUZZER.log; exit $$status'

faults: $(BUILD)/release/.built $(VENV)/.test  ## REAL (200), ELASTIC (200) and SIMULATED (10000) jobs with injected faults, as tables
	cd tests/python && $(abspath $(BIN))/python -m faults --real $(REAL) --elastic $(ELASTIC) --simulated $(SIMULATED)

models:  ## model-check the protocols with spin
	tests/model/check.sh

python-single: $(VENV)/.test  ## Python tests that need one process
	@cd tests && $(abspath $(BIN))/python -c "import horoscale.sim"  # otherwise its tests would be skipped
	$(PYTEST) python/single

python-parallel: $(VENV)/.test  ## Python tests on several ranks
	$(PYTEST) python/parallel

python-integration: $(VENV)/.test  ## launcher, faults, soak, examples, benchmarks
	$(PYTEST) -n 2 --dist loadfile python/integration

python-mpi: $(VENV)/.test  ## Python tests under mpirun: Open MPI and MPICH, from PyPI and from Debian
	$(PYTEST) python/mpi

python-nccl: $(VENV)/.test $(BUILD)/nccl/nccl.h  ## CUDA operations: with a test double of NCCL, and on a GPU if there is one
	export NCCL_INCLUDE=$(abspath $(BUILD)/nccl) && $(PYTEST) python/nccl python/gpu

python-status: $(VENV)-status/.test  ## the status page in Chromium, and a notebook; PICTURES=1 writes docs/images
	export HOROSCALE_TEST_PICTURES=$(if $(PICTURES),$(abspath docs/images)) && cd tests && $(abspath $(VENV)-status/bin)/pytest --durations=5 \
	  python/status python/integration/test_watched_jobs.py::test_prometheus_gets_metrics_or_is_told_what_is_missing

python-tensorflow: $(VENV)-tf/.test  ## Python tests of the TensorFlow binding, in a separate environment
	cd tests && $(abspath $(VENV)-tf/bin)/pytest -k tensorflow python/parallel/test_on_ranks_tensorflow.py \
	  python/parallel/test_on_ranks_keras.py python/integration/test_examples_keras.py python/integration/test_adaptive_keras.py \
	  python/integration/test_*_tensorflow.py python/integration/test_compat_imports.py python/mpi/test_tensorflow.py

python-lightning: $(VENV)-lightning/.test  ## Lightning's Trainer and Fabric with strategy="horoscale"; Weights & Biases
	cd tests && $(abspath $(VENV)-lightning/bin)/python -m pytest --durations=5 --durations-min=5 python/with_lightning

python-mxnet: $(VENV)-mxnet/.test  ## Python tests of MXNet's binding, in a separate environment
	cd tests && $(abspath $(VENV)-mxnet/bin)/python -m pytest --durations=5 --durations-min=5 python/with_mxnet

python-slurm: $(VENV)/.test  ## Python tests of Slurm: Debian's slurmctld and two slurmd on this machine
	$(PYTEST) python/engines/test_slurm.py

python-ray: $(VENV)-ray/.test  ## Python tests of Ray: two nodes on this machine, in a separate environment
	cd tests && $(abspath $(VENV)-ray/bin)/python -m pytest --durations=10 --durations-min=5 python/engines/test_ray.py

python-spark: $(VENV)-spark/.test  ## Python tests of Spark, Dask and Kubernetes, in a separate environment
	cd tests && $(abspath $(VENV)-spark/bin)/python -m pytest --durations=10 --durations-min=5 python/engines/test_spark_data.py \
	  python/engines/test_spark.py python/engines/test_dask.py python/engines/test_kubernetes.py

engines: $(VENV)/.test $(VENV)-ray/.test $(VENV)-spark/.test  ## longer tests of engines: lost nodes, queues, limits, GPUs, MPI plug-ins (minutes; not in CI)
	$(PYTEST) -v python/engines/test_slurm_more.py
	cd tests && $(abspath $(VENV)-ray/bin)/python -m pytest -v python/engines/test_ray_more.py
	cd tests && $(abspath $(VENV)-spark/bin)/python -m pytest -v python/engines/test_spark_more.py python/engines/test_spark_estimators.py

torch-libraries: $(VENV)-torch-libraries/.test  ## torch.distributed with third-party libraries, on 4 ranks and several hosts (minutes; not in CI)
	cd tests && $(abspath $(VENV)-torch-libraries/bin)/pytest -v python/libraries

wheel: $(VENV)-wheel/.tools  ## source distribution, and manylinux wheels for WHEELS (x86_64 aarch64), in dist/
	$(VENV)-wheel/bin/python cmake/build_wheels.py $(WHEELS)

python-wheel: wheel  ## test the contents of these wheels, and that they work without a compiler
	export WHEELS="$(WHEELS)" && cd tests && $(abspath $(VENV)-wheel/bin)/pytest python/manylinux

release: $(VENV)-wheel/.tools  ## build the packages of a tagged commit, and check them in clean environments; REHEARSAL=1 for any commit
	$(VENV)-wheel/bin/python cmake/release.py $(if $(REHEARSAL),--rehearsal) $(WHEELS)

wheel-check:  ## test one wheel without TensorFlow and with each of its versions (minutes, gigabytes; not in CI)
	PYTHON=$(PYTHON) tests/python/wheels/check.sh

torch-check:  ## test the torch.distributed backend with older versions of PyTorch (minutes, gigabytes; not in CI)
	PYTHON=$(PYTHON) tests/python/torch_versions/check.sh

clean:  ## remove everything that was built, and .venv
	rm -rf $(BUILD) $(VENV) $(VENV)-peers $(VENV)-mpi-* $(VENV)-tf $(VENV)-status $(VENV)-ray $(VENV)-spark \
	  $(VENV)-lightning $(VENV)-mxnet $(VENV)-torch-libraries $(VENV)-wheel

# ---------------------------------------------------------------- how things are built
#
# Tests import few of the modules of their dependencies. These are compiled to bytecode on import (--no-compile).
#
# A stamp in .venv records an installation: .tools (tools for building and checking), .test (the package with
# all dependencies of its tests), .demo (the package with the dependencies of the demo).

$(VENV)/.venv:
	@echo "== virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "horoscale needs Python 3.10 or newer")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.tools: pyproject.toml | $(VENV)/.venv
	@echo "== tools for building and checking"
	@$(BIN)/python -m pip install -q cmake ninja
	@touch $@

$(VENV)/.demo: $(SOURCES) | $(VENV)/.venv
	@echo "== horoscale and PyTorch (a few minutes the first time)"
	@$(BIN)/python -m pip install -q '.[demo]'
	@touch $@

$(VENV)/.test: $(SOURCES) | $(VENV)/.tools
	@echo "== horoscale with its simulator (a few minutes)"
	@rm -rf $(BUILD)/package && HOROSCALE_BUILD_SIM=1 $(BIN)/python -m pip wheel -q --no-deps -w $(BUILD)/package .
	@echo "== dependencies of the tests (a minute the first time)"
	@$(BIN)/python -m pip install -q --no-compile "$$(ls $(BUILD)/package/*.whl)[demo,test,dev]"
	@$(BIN)/python -m pip install -q --no-deps --force-reinstall $(BUILD)/package/*.whl
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: $(VENV)/.test
	@echo "== tools for the documentation site"
	@$(BIN)/python -m pip install -q --no-compile "$$(ls $(BUILD)/package/*.whl)[docs]"
	@touch $@

# The same build: compiled code does not depend on a framework.
$(VENV)-tf/.test: $(VENV)/.test
	@echo "== horoscale and TensorFlow in $(VENV)-tf (a minute the first time)"
	@$(PYTHON) -m venv $(VENV)-tf
	@$(VENV)-tf/bin/python -m pip install -q --no-compile "$$(ls $(BUILD)/package/*.whl)[test]" \
	    'tensorflow-cpu==2.21.*' 'keras==3.15.*' 'tf_keras==2.21.*'
	@$(VENV)-tf/bin/python -m pip install -q --no-deps --force-reinstall $(BUILD)/package/*.whl
	@touch $@

# Tools that control a browser and execute notebooks.
$(VENV)-status/.test: $(VENV)/.test
	@echo "== horoscale, Playwright and a notebook kernel in $(VENV)-status"
	@$(PYTHON) -m venv $(VENV)-status
	@$(VENV)-status/bin/python -m pip install -q --no-compile "$$(ls $(BUILD)/package/*.whl)[status]" \
	    pytest pytest-timeout 'playwright==1.65.*' 'axe-playwright-python==0.1.*' 'nbclient==0.11.*' 'ipykernel==7.*'
	@$(VENV)-status/bin/python -m pip install -q --no-deps --force-reinstall $(BUILD)/package/*.whl
	@touch $@

# All packages except Ray, including horoscale, are those of $(VENV).
$(VENV)-ray/.test: $(VENV)/.test
	@echo "== Ray in $(VENV)-ray (a minute the first time)"
	@$(PYTHON) -m venv $(VENV)-ray
	@$(BIN)/python -c '$(PRINT_PACKAGES)' >"$$($(VENV)-ray/bin/python -c '$(PRINT_PACKAGES)')/venv.pth"
	@$(VENV)-ray/bin/python -m pip install -q --no-compile 'ray[train]==2.60.*'
	@touch $@

# All packages except these, including horoscale, are those of $(VENV).
$(VENV)-spark/.test: $(VENV)/.test
	@echo "== Spark, Dask and the Kubernetes client in $(VENV)-spark (a minute the first time)"
	@$(PYTHON) -m venv $(VENV)-spark
	@$(BIN)/python -c '$(PRINT_PACKAGES)' >"$$($(VENV)-spark/bin/python -c '$(PRINT_PACKAGES)')/venv.pth"
	@$(VENV)-spark/bin/python -m pip install -q --no-compile \
	    'pyspark==4.*' pyarrow 'pandas>=2.0,<3' fsspec distributed kubernetes
	@touch $@

# The same build. MXNet 1.9.1 is the last release, and works with older versions of Python and numpy.
$(VENV)-mxnet/.test: $(VENV)/.test
	@echo "== horoscale and MXNet in $(VENV)-mxnet (a minute the first time)"
	@$(MXNET_PYTHON) -m venv $(VENV)-mxnet
	@$(VENV)-mxnet/bin/python -m pip install -q --no-compile "$$(ls $(BUILD)/package/*.whl)" \
	    'mxnet==1.9.1' 'numpy<1.24' 'scikit-learn<1.8' 'pytest>=7.4' pytest-timeout
	@$(VENV)-mxnet/bin/python -m pip install -q --no-deps --force-reinstall $(BUILD)/package/*.whl
	@touch $@

# All packages except these, including horoscale, are those of $(VENV).
$(VENV)-lightning/.test: $(VENV)/.test
	@echo "== Lightning and Weights & Biases in $(VENV)-lightning"
	@$(PYTHON) -m venv $(VENV)-lightning
	@$(BIN)/python -c '$(PRINT_PACKAGES)' >"$$($(VENV)-lightning/bin/python -c '$(PRINT_PACKAGES)')/venv.pth"
	@$(VENV)-lightning/bin/python -m pip install -q --no-compile 'lightning==2.6.*' 'wandb==0.31.*'
	@touch $@

$(VENV)-torch-libraries/.test: $(VENV)/.test
	@echo "== horoscale and training libraries for PyTorch in $(VENV)-torch-libraries (minutes the first time)"
	@$(PYTHON) -m venv $(VENV)-torch-libraries
	@$(VENV)-torch-libraries/bin/python -m pip install -q --no-compile \
	    "$$(ls $(BUILD)/package/*.whl)[demo,test]" 'lightning==2.6.*' 'accelerate==1.15.*' 'transformers==5.23.*'
	@$(VENV)-torch-libraries/bin/python -m pip install -q --no-deps --force-reinstall $(BUILD)/package/*.whl
	@touch $@

$(VENV)-wheel/.tools: pyproject.toml
	@echo "== tools that build wheels in $(VENV)-wheel"
	@$(PYTHON) -m venv $(VENV)-wheel
	@$(VENV)-wheel/bin/python -m pip install -q ziglang==$(ZIG_VERSION) auditwheel build \
	    'setuptools>=77' cmake ninja 'cffi>=1.15' pybind11 pytest pytest-timeout twine
	@touch $@

# NCCL's header, which tests compare with our declarations. Nothing else of the wheel is kept.
$(BUILD)/nccl/nccl.h: | $(VENV)/.venv
	@echo "== nccl.h from NVIDIA's wheel (350 MB)"
	@mkdir -p $(@D)
	@$(BIN)/python -m pip download -q --no-deps --only-binary :all: -d $(@D) nvidia-nccl-cu12==$(NCCL_VERSION)
	@$(BIN)/python -c 'import sys, zipfile; [open("$@", "wb").write(zipfile.ZipFile(p).read("nvidia/nccl/include/nccl.h")) for p in sys.argv[1:]]' \
	    $(@D)/*.whl
	@rm -f $(@D)/*.whl

$(BUILD)/release/.built: $(CPP_SOURCES) | $(VENV)/.tools
	$(CONFIGURE) $(RELEASE) -B $(@D)
	$(CMAKE) --build $(@D) -j $(JOBS)
	@touch $@

$(BUILD)/arm64/.built: $(CPP_SOURCES) | $(VENV)/.tools
	$(CONFIGURE) -DCMAKE_TOOLCHAIN_FILE=cmake/arm64.cmake $(RELEASE) -B $(@D)
	$(CMAKE) --build $(@D) -j $(JOBS) --target unit_fold unit_encoding unit_adasum
	@touch $@

# Fuzzers and tests share the instrumented code, which is compiled once.
$(BUILD)/asan/.built: $(CPP_SOURCES) | $(VENV)/.tools
	$(CONFIGURE) $(SANITIZED) -B $(@D) -DHOROSCALE_BUILD_FUZZERS=ON \
	    -DHOROSCALE_SANITIZE=address,undefined,fuzzer-no-link
	$(CMAKE) --build $(@D) -j $(JOBS)
	@touch $@

$(BUILD)/tsan/.built: $(CPP_SOURCES) | $(VENV)/.tools
	$(CONFIGURE) $(SANITIZED) -B $(@D) -DHOROSCALE_SANITIZE=thread
	$(CMAKE) --build $(@D) -j $(JOBS)
	@touch $@
