# The tasks of the project. `make help` lists them.
#
# Everything Python lives in .venv, everything compiled for tests in build/: nothing is installed into the
# system. A target that is up to date does nothing, so each can be called again at any time.

MAKEFLAGS += --no-print-directory
# Hundreds of processes import PyTorch here: without bytecode each would compile it anew, for four seconds.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV   ?= .venv
BUILD  ?= build
JOBS   ?= $(shell nproc)
# ON compiles everything in less time; OFF is quicker after a change of a few files, and shows missing includes.
UNITY  ?= ON

BIN   := $(VENV)/bin
CMAKE := $(BIN)/cmake
# From a folder without horoscale/ in it: it is the installed package that is tested.
PYTEST := cd tests && $(abspath $(BIN))/pytest --durations=10 --durations-min=5
CTEST := $(BIN)/ctest --output-on-failure --no-tests=error -j $(JOBS)

CONFIGURE = $(CMAKE) -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
            -DHOROSCALE_BUILD_TESTS=ON -DHOROSCALE_WERROR=ON -DHOROSCALE_UNITY=$(UNITY)
# Release with assertions: what the tests run is what users run, plus its own checks.
RELEASE   = -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE="-O2 -UNDEBUG"
CLANG    := $(or $(shell command -v clang++-14),$(shell command -v clang++))
SANITIZED = -DCMAKE_CXX_COMPILER=$(CLANG) -DCMAKE_C_COMPILER=$(subst clang++,clang,$(CLANG)) \
            -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1"

# What the installed package is made from.
SOURCES := setup.py pyproject.toml CMakeLists.txt $(shell find cmake cpp horoscale -type f \
             -not -name '*.pyc' -not -name '*.so')
CPP_SOURCES := $(shell find CMakeLists.txt cmake cpp tests/cpp -type f)

# Where a Python has its packages.
PRINT_PACKAGES := import sysconfig; print(sysconfig.get_path("purelib"))

FUZZ_SECONDS ?= 10
REAL ?= 200
ELASTIC ?= 200
SIMULATED ?= 10000
WHEELS ?= x86_64 aarch64
ZIG_VERSION ?= 0.15.2
NCCL_VERSION ?= 2.32.3

.DEFAULT_GOAL := help
.PHONY: help demo test check bench bench-elastic docs docs-site python build cpp-test arm64 sanitize asan tsan fuzz faults models lint \
         python-single python-parallel python-integration python-mpi python-nccl python-status python-tensorflow \
         python-lightning python-slurm python-ray python-spark engines torch-libraries wheel python-wheel release wheel-check torch-check clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---------------------------------------------------------------- the two commands of the README

demo: $(VENV)/.demo  ## train a small network on 2 ranks; installs what it needs
	@echo "== horoscalerun -np 2 python examples/torch_digits.py"
	@$(BIN)/horoscalerun -np 2 $(BIN)/python examples/torch_digits.py

test:  ## all tests, in the order of CI
	@bash .ci/run stages

# ---------------------------------------------------------------- for a quick answer while working

check: lint $(BUILD)/release/.built $(VENV)/.test  ## formats, types, unit tests, simulator: under 2 minutes
	$(CTEST) --test-dir $(BUILD)/release -LE slow
	$(PYTEST) -q python/single

lint: $(VENV)/.test  ## clang-format, ruff and mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cc' '*.h' '*.c')
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.test  ## all benchmarks beside other libraries, and which aims are reached: 20 idle minutes
	$(BIN)/python benchmarks/report.py --peer-venv $(VENV)-peers --output $(BUILD)/bench

bench-elastic: $(VENV)/.test  ## how long elastic jobs stand still, and a picture of a recovery: 20 idle minutes
	mkdir -p $(BUILD)/bench
	$(BIN)/python benchmarks/elastic.py --json $(BUILD)/bench/elastic.json --picture $(BUILD)/bench/recovery.svg

docs-site: $(VENV)/.docs  ## the documentation as a site in build/site; a warning is an error
	$(BIN)/sphinx-build -q --fail-on-warning --keep-going -d $(BUILD)/site-cache docs $(BUILD)/site
	@echo "== $(BUILD)/site/index.html"

docs: $(VENV)/.test  ## write the documents that are generated from the code
	$(BIN)/python docs/generate_configuration.py

# ---------------------------------------------------------------- the stages of CI

python: $(VENV)/.test  ## install the package and what its tests need into .venv

build: $(VENV)/.test $(BUILD)/release/.built  ## compile everything, tests included

cpp-test: $(BUILD)/release/.built  ## C++ tests, compiled by the system's compiler
	$(CTEST) --test-dir $(BUILD)/release

sanitize: asan tsan  ## C++ tests under the sanitizers

arm64: $(BUILD)/arm64/.built  ## the arithmetic as arm64 does it: cross-compiled, run by qemu
	$(CTEST) --test-dir $(BUILD)/arm64

asan: $(BUILD)/asan/.built  ## … Address and UndefinedBehavior
	HOROSCALE_SIM_SEEDS=200 HOROSCALE_FAULT_SEEDS=2000 $(CTEST) --test-dir $(BUILD)/asan

tsan: $(BUILD)/tsan/.built  ## … Thread, with ranks as threads
	$(CTEST) --test-dir $(BUILD)/tsan

fuzz: $(BUILD)/asan/.built  ## every decoder's fuzzer for FUZZ_SECONDS (10)
	@ls $(BUILD)/asan/tests/cpp/*_fuzzer | xargs -P $(JOBS) -I FUZZER sh -c '\
	  FUZZER -max_total_time=$(FUZZ_SECONDS) -timeout=5 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=1 \
	    >FUZZER.log 2>&1; status=$$?; echo "== FUZZER"; cat FUZZER.log; exit $$status'

faults: $(BUILD)/release/.built $(VENV)/.test  ## REAL (200) jobs with faults, ELASTIC (200), SIMULATED (10000): tables
	cd tests/python && $(abspath $(BIN))/python -m faults --real $(REAL) --elastic $(ELASTIC) --simulated $(SIMULATED)

models:  ## the protocols, model-checked by spin
	tests/model/check.sh

python-single: $(VENV)/.test  ## Python tests that need one process
	@cd tests && $(abspath $(BIN))/python -c "import horoscale.sim"  # else its tests would be skipped
	$(PYTEST) python/single

python-parallel: $(VENV)/.test  ## Python tests over several ranks
	$(PYTEST) python/parallel

python-integration: $(VENV)/.test  ## launcher, faults, soak, examples, benchmarks
	$(PYTEST) python/integration

python-mpi: $(VENV)/.test  ## Python tests under mpirun: Open MPI and MPICH, wheels and Debian's
	$(PYTEST) python/mpi

python-nccl: $(VENV)/.test $(BUILD)/nccl/nccl.h  ## CUDA operations: with a double of NCCL, and on a GPU if there is one
	export NCCL_INCLUDE=$(abspath $(BUILD)/nccl) && $(PYTEST) python/nccl python/gpu

python-status: $(VENV)-status/.test  ## the page of a job in Chromium, and a notebook; docs/images with PICTURES=1
	export HOROSCALE_TEST_PICTURES=$(if $(PICTURES),$(abspath docs/images)) && cd tests && $(abspath $(VENV)-status/bin)/pytest --durations=5 \
	  python/status python/integration/test_watched_jobs.py::test_prometheus_gets_metrics_or_is_told_what_is_missing

python-tensorflow: $(VENV)-tf/.test  ## Python tests of TensorFlow's binding, in an environment of their own
	cd tests && $(abspath $(VENV)-tf/bin)/pytest -k tensorflow python/parallel/test_on_ranks_tensorflow.py \
	  python/parallel/test_on_ranks_keras.py python/integration/test_examples_keras.py \
	  python/integration/test_*_tensorflow.py python/integration/test_compat_imports.py python/mpi/test_tensorflow.py

python-lightning: $(VENV)-lightning/.test  ## Lightning's Trainer and Fabric with strategy="horoscale"
	cd tests && $(abspath $(VENV)-lightning/bin)/python -m pytest --durations=5 --durations-min=5 python/with_lightning

python-slurm: $(VENV)/.test  ## Python tests of Slurm: slurmctld and two slurmd of Debian's on this machine
	$(PYTEST) python/engines/test_slurm.py

python-ray: $(VENV)-ray/.test  ## Python tests of Ray: two nodes on this machine, in an environment of their own
	cd tests && $(abspath $(VENV)-ray/bin)/python -m pytest --durations=10 --durations-min=5 python/engines/test_ray.py

python-spark: $(VENV)-spark/.test  ## Python tests of Spark, Dask and Kubernetes, in an environment of their own
	cd tests && $(abspath $(VENV)-spark/bin)/python -m pytest --durations=10 --durations-min=5 python/engines/test_spark_data.py \
	  python/engines/test_spark.py python/engines/test_dask.py python/engines/test_kubernetes.py

engines: $(VENV)/.test $(VENV)-spark/.test  ## the longer tests of engines: nodes that are lost, queues, MPI's plug-ins (minutes; not in CI)
	$(PYTEST) -v python/engines/test_slurm_more.py
	cd tests && $(abspath $(VENV)-spark/bin)/python -m pytest -v python/engines/test_spark_estimators.py

torch-libraries: $(VENV)-torch-libraries/.test  ## torch.distributed under others' libraries, on 4 ranks, over hosts (minutes; not in CI)
	cd tests && $(abspath $(VENV)-torch-libraries/bin)/pytest -v python/libraries

wheel: $(VENV)-wheel/.tools  ## source distribution, and manylinux wheels for WHEELS (x86_64 aarch64), in dist/
	$(VENV)-wheel/bin/python cmake/build_wheels.py $(WHEELS)

python-wheel: wheel  ## what is in these wheels, and that they work where there is no compiler
	export WHEELS="$(WHEELS)" && cd tests && $(abspath $(VENV)-wheel/bin)/pytest python/manylinux

release: $(VENV)-wheel/.tools  ## a tagged commit's packages in dist/, checked in clean environments; REHEARSAL=1 for any commit
	$(VENV)-wheel/bin/python cmake/release.py $(if $(REHEARSAL),--rehearsal) $(WHEELS)

wheel-check:  ## one wheel without TensorFlow and with each version of it (minutes, gigabytes; not in CI)
	PYTHON=$(PYTHON) tests/python/wheels/check.sh

torch-check:  ## the backend of torch.distributed with older versions of PyTorch (minutes, gigabytes; not in CI)
	PYTHON=$(PYTHON) tests/python/torch_versions/check.sh

clean:  ## remove what was built, and .venv
	rm -rf $(BUILD) $(VENV) $(VENV)-peers $(VENV)-mpi-* $(VENV)-tf $(VENV)-status $(VENV)-ray $(VENV)-spark \
	  $(VENV)-lightning $(VENV)-torch-libraries $(VENV)-wheel

# ---------------------------------------------------------------- how things come about
#
# Of what tests need few modules are ever imported: they are compiled to bytecode then (--no-compile).
#
# A stamp in .venv stands for an installation: .tools (what builds and checks), .test (the package with
# everything that its tests need), .demo (the package with what the demo needs).

$(VENV)/.venv:
	@echo "== virtual environment in $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "horoscale needs Python 3.10 or newer")'
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.tools: pyproject.toml | $(VENV)/.venv
	@echo "== tools that build and check"
	@$(BIN)/python -m pip install -q cmake ninja
	@touch $@

$(VENV)/.demo: $(SOURCES) | $(VENV)/.venv
	@echo "== horoscale and PyTorch (a few minutes the first time)"
	@$(BIN)/python -m pip install -q '.[demo]'
	@touch $@

$(VENV)/.test: $(SOURCES) | $(VENV)/.tools
	@echo "== horoscale with its simulator (a few minutes)"
	@rm -rf $(BUILD)/package && HOROSCALE_BUILD_SIM=1 $(BIN)/python -m pip wheel -q --no-deps -w $(BUILD)/package .
	@echo "== what its tests need (a minute the first time)"
	@$(BIN)/python -m pip install -q --no-compile "$$(ls $(BUILD)/package/*.whl)[demo,test,dev]"
	@$(BIN)/python -m pip install -q --no-deps --force-reinstall $(BUILD)/package/*.whl
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: $(VENV)/.test
	@echo "== what makes the documentation's site"
	@$(BIN)/python -m pip install -q --no-compile "$$(ls $(BUILD)/package/*.whl)[docs]"
	@touch $@

# The same build: what is compiled needs nothing of a framework.
$(VENV)-tf/.test: $(VENV)/.test
	@echo "== horoscale and TensorFlow in $(VENV)-tf (a minute the first time)"
	@$(PYTHON) -m venv $(VENV)-tf
	@$(VENV)-tf/bin/python -m pip install -q --no-compile "$$(ls $(BUILD)/package/*.whl)[test]" \
	    'tensorflow-cpu==2.21.*' 'keras==3.15.*' 'tf_keras==2.21.*'
	@$(VENV)-tf/bin/python -m pip install -q --no-deps --force-reinstall $(BUILD)/package/*.whl
	@touch $@

# What drives a browser, and what executes notebooks.
$(VENV)-status/.test: $(VENV)/.test
	@echo "== horoscale, Playwright and a notebook's kernel in $(VENV)-status"
	@$(PYTHON) -m venv $(VENV)-status
	@$(VENV)-status/bin/python -m pip install -q --no-compile "$$(ls $(BUILD)/package/*.whl)[status]" \
	    pytest pytest-timeout 'playwright==1.65.*' 'axe-playwright-python==0.1.*' 'nbclient==0.11.*' 'ipykernel==7.*'
	@$(VENV)-status/bin/python -m pip install -q --no-deps --force-reinstall $(BUILD)/package/*.whl
	@touch $@

# Everything but Ray, horoscale included, is that of $(VENV).
$(VENV)-ray/.test: $(VENV)/.test
	@echo "== Ray in $(VENV)-ray (a minute the first time)"
	@$(PYTHON) -m venv $(VENV)-ray
	@$(BIN)/python -c '$(PRINT_PACKAGES)' >"$$($(VENV)-ray/bin/python -c '$(PRINT_PACKAGES)')/venv.pth"
	@$(VENV)-ray/bin/python -m pip install -q --no-compile 'ray[train]==2.60.*'
	@touch $@

# Everything but these, horoscale included, is that of $(VENV).
$(VENV)-spark/.test: $(VENV)/.test
	@echo "== Spark, Dask and Kubernetes' client in $(VENV)-spark (a minute the first time)"
	@$(PYTHON) -m venv $(VENV)-spark
	@$(BIN)/python -c '$(PRINT_PACKAGES)' >"$$($(VENV)-spark/bin/python -c '$(PRINT_PACKAGES)')/venv.pth"
	@$(VENV)-spark/bin/python -m pip install -q --no-compile \
	    'pyspark==4.*' pyarrow 'pandas>=2.0,<3' fsspec distributed kubernetes
	@touch $@

# Everything but Lightning, horoscale included, is that of $(VENV).
$(VENV)-lightning/.test: $(VENV)/.test
	@echo "== Lightning in $(VENV)-lightning"
	@$(PYTHON) -m venv $(VENV)-lightning
	@$(BIN)/python -c '$(PRINT_PACKAGES)' >"$$($(VENV)-lightning/bin/python -c '$(PRINT_PACKAGES)')/venv.pth"
	@$(VENV)-lightning/bin/python -m pip install -q --no-compile 'lightning==2.6.*'
	@touch $@

$(VENV)-torch-libraries/.test: $(VENV)/.test
	@echo "== horoscale and what trains by PyTorch in $(VENV)-torch-libraries (minutes the first time)"
	@$(PYTHON) -m venv $(VENV)-torch-libraries
	@$(VENV)-torch-libraries/bin/python -m pip install -q --no-compile \
	    "$$(ls $(BUILD)/package/*.whl)[demo,test]" 'lightning==2.6.*' 'accelerate==1.15.*' 'transformers==5.23.*'
	@$(VENV)-torch-libraries/bin/python -m pip install -q --no-deps --force-reinstall $(BUILD)/package/*.whl
	@touch $@

$(VENV)-wheel/.tools: pyproject.toml
	@echo "== what builds wheels in $(VENV)-wheel"
	@$(PYTHON) -m venv $(VENV)-wheel
	@$(VENV)-wheel/bin/python -m pip install -q ziglang==$(ZIG_VERSION) auditwheel build \
	    'setuptools>=77' cmake ninja 'cffi>=1.15' pybind11 pytest pytest-timeout twine
	@touch $@

# NCCL's own header, with which our declarations of it are compared. Of the wheel nothing else is kept.
$(BUILD)/nccl/nccl.h: | $(VENV)/.venv
	@echo "== nccl.h out of NVIDIA's wheel (350 MB)"
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
	$(CMAKE) --build $(@D) -j $(JOBS) --target unit_fold unit_encoding
	@touch $@

# The fuzzers share the instrumented code with the tests, so that it is compiled once.
$(BUILD)/asan/.built: $(CPP_SOURCES) | $(VENV)/.tools
	$(CONFIGURE) $(SANITIZED) -B $(@D) -DHOROSCALE_BUILD_FUZZERS=ON \
	    -DHOROSCALE_SANITIZE=address,undefined,fuzzer-no-link
	$(CMAKE) --build $(@D) -j $(JOBS)
	@touch $@

$(BUILD)/tsan/.built: $(CPP_SOURCES) | $(VENV)/.tools
	$(CONFIGURE) $(SANITIZED) -B $(@D) -DHOROSCALE_SANITIZE=thread
	$(CMAKE) --build $(@D) -j $(JOBS)
	@touch $@
