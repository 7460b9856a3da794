"""Stores, and Parquet files of which each rank reads its part; without a Spark session."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")
pq = pytest.importorskip("pyarrow.parquet")

from horoscale.runner.check_build import describe  # noqa: E402
from horoscale.spark import Store, StoreError  # noqa: E402
from horoscale.spark import context as spark_context  # noqa: E402
from horoscale.spark.context import (  # noqa: E402
    SparkError,
    active_context,
    check_barrier,
    check_slots,
    wait_for_slots,
)
from horoscale.spark.parquet import DataError, DataFiles, part, read, to_array  # noqa: E402


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_store_is_any_file_system(kind: str, tmp_path: Path) -> None:
    place = str(tmp_path / "new" / "store") if kind == "local" else "memory://store"
    store = pickle.loads(pickle.dumps(Store.create(place)))
    path = store.get_checkpoint_path("one")
    assert path.endswith("store/runs/one/checkpoint")
    store.write(path, b"first")
    store.write(path, b"second")
    assert store.read(path) == b"second"
    store.delete(store.get_run_path("one"))
    assert not store.exists(path)
    with pytest.raises(StoreError, match="has to be on a file system that all machines see"):
        store.read(path)


def test_a_stores_options_travel_and_are_not_shown() -> None:
    """The guarantees in docs/security.md."""
    store = Store.create("memory://store", {"secret": "of the bucket"})
    data = DataFiles(store, (), ())  # what tasks and ranks receive
    assert pickle.loads(pickle.dumps(data)).store.storage_options == {"secret": "of the bucket"}
    assert "of the bucket" not in repr(data)


def test_a_store_that_cannot_be_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"store '.*/file/store' can't be written: .*"):
        Store.create(tmp_path / "file" / "store")
    with pytest.raises(StoreError, match=r"store 'nosuch://bucket': .*nosuch"):
        Store.create("nosuch://bucket")


@pytest.fixture
def data(tmp_path: Path) -> DataFiles:
    """Rows 0 to 99 in files of 7, 0, 40 and 53 rows, in row groups of 10."""
    store = Store.create(tmp_path)
    counts, files, begin = (7, 40, 53), [], 0
    for count in counts:
        numbers = list(range(begin, begin + count))
        table = pa.table({"row": numbers, "pair": [[float(i), -float(i)] for i in numbers]})
        files.append(str(tmp_path / f"{begin}.parquet"))
        pq.write_table(table, files[-1], row_group_size=10)
        begin += count
    return DataFiles(store, tuple(files), counts)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_each_row_is_of_one_rank(data: DataFiles, size: int) -> None:
    parts = [part(rank, size, data.total) for rank in range(size)]
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    read_rows = []
    for rows in parts:
        arrays = read(data, rows, ["row", "pair"])
        assert arrays["pair"].shape == (len(rows), 2)
        assert (arrays["pair"] == np.stack([arrays["row"], -arrays["row"]], 1)).all()
        read_rows += arrays["row"].tolist()
    assert read_rows == list(range(100))


def test_a_file_that_this_machine_does_not_see(data: DataFiles) -> None:
    Path(data.files[1]).unlink()
    assert len(read(data, range(7), ["row"])["row"]) == 7
    with pytest.raises(StoreError, match="all machines see"):
        read(data, range(8), ["row"])


def test_columns_that_are_no_arrays_are_named() -> None:
    assert to_array("x", pa.array([[1, 2], [3, 4]])).tolist() == [[1, 2], [3, 4]]
    assert to_array("x", pa.array([True, False])).tolist() == [1, 0]
    nested = pa.array([[[1.0], [2.0]], [[3.0], [4.0]]])
    assert to_array("x", nested).shape == (2, 2, 1)
    for values, why in (
        ([1, None], "rows without a value"),
        ([[1, 2], [3]], "not of one length"),
        ([[1, 2, 3], [4]], "not of one length"),
        (["a", "b"], "values of type string"),
    ):
        with pytest.raises(DataError, match=f"column 'x' .*{why}|lists of column 'x' .*{why}"):
            to_array("x", pa.array(values))


def application(master: str, **settings: str) -> Any:
    """A stand-in for SparkContext with these settings; names have _ for dots."""
    names = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}
    return SimpleNamespace(master=master, getConf=lambda: names)


@pytest.mark.parametrize(
    ("context", "most"),
    [
        (application("yarn"), 2),
        (application("k8s://https://host", executor_instances="3", executor_cores="4"), 12),
        (application("yarn", executor_cores="4", task_cpus="2"), 4),
        (application("spark://host:7077", cores_max="6"), 6),
        (application("spark://host:7077"), None),
        (application("local-cluster[2,3,1024]", task_cpus="2"), 2),
        (application("yarn", dynamicAllocation_enabled="true"), None),
        (
            application(
                "yarn", dynamicAllocation_enabled="true", dynamicAllocation_maxExecutors="5"
            ),
            5,
        ),
    ],
    ids=lambda value: getattr(value, "master", str(value)),
)
def test_how_many_slots_there_can_ever_be(context: Any, most: int | None) -> None:
    check_slots(context, most or 1000)
    if most is not None:
        with pytest.raises(SparkError, match=f"this application has at most {most} "):
            check_slots(context, most + 1)
    if context.getConf().get("spark.dynamicAllocation.enabled"):
        with pytest.raises(SparkError, match="no barrier stages with dynamic allocation"):
            check_barrier(context, 1)
    else:
        check_barrier(context, 1)


def test_the_wait_for_slots_is_told_and_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(spark_context, "_slots", lambda _: 2)
    monkeypatch.setattr(spark_context, "_TELL_S", -1.0)
    standalone = application("spark://host:7077")
    with pytest.raises(SparkError, match=r"4 ranks need 4 slots, and after 0 s there are 2 \("):
        wait_for_slots(standalone, 4, 0.0)
    assert capsys.readouterr().err == (
        "horoscale.spark: waiting for 4 slots for up to 0 s; there are 2 (master "
        "spark://host:7077, 1 core a task)\n"
    )


def test_without_java_or_a_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    with pytest.raises(SparkError, match="there is no SparkContext: create a session first"):
        active_context()
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(SparkError, match="Spark needs Java, and there is none"):
        active_context()


def test_without_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    with pytest.raises(SparkError, match=r"needs pyspark, .* pip install 'horoscale\[spark\]'"):
        active_context()


def test_check_build_tells_of_engines(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "[ ] Spark: Java is missing; install a JRE, version 17 or newer" in describe()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").touch(0o755)
    assert "[X] Spark\n" in describe()
