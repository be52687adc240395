"""Which epoch a task is of, by what Spark tells of it."""

from __future__ import annotations

import pytest

from clonos._worker.place import BATCH_SETTING, batch_of, batch_tag, epoch_of, epoch_tag, root_of
from clonos.errors import ConfigError

SESSION = "SparkConnect_SessionTag_User_somebody_Session_7f_Tag_"
OPERATION = "SparkConnect_OperationTag_User_somebody_Session_7f_Operation_1"
SQL = {"spark.sql.execution.id": "7"}
IN_STREAM = {"spark.sql.streaming.internal.stateStore.partitions": "200"}
BY_CLIENT = {"spark.connect.operation_id": "1"}


@pytest.mark.parametrize("name", ["daily", "a, b:c ü", "clonos-epoch:x:1"])
def test_a_tag_says_the_name_of_an_epoch(name: str) -> None:
    tags = f"{OPERATION},{SESSION}mine,{SESSION}{epoch_tag(name, 5)},spark-session-1"
    assert epoch_of({"spark.job.tags": tags} | SQL, "app") == ("batch", name)
    assert "," not in epoch_tag(name, 5)


def test_a_batch_is_a_streams_whatever_is_open_around_it() -> None:
    batch = {"sql.streaming.queryId": "q", "streaming.sql.batchId": "3"}
    tagged = {"spark.job.tags": SESSION + epoch_tag("daily", 5)}
    assert epoch_of(batch | tagged | IN_STREAM | BY_CLIENT, "app") == ("q", 3)


def test_a_batch_function_of_a_client_is_refused_and_a_classic_ones_thread_is_not() -> None:
    with pytest.raises(ConfigError, match="foreachBatch"):
        epoch_of(SQL | IN_STREAM | BY_CLIENT, "app")
    assert epoch_of(SQL | IN_STREAM, "app") == ("app:app", "sql-7")
    assert epoch_of(SQL | {"spark.job.tags": "mine,other"}, "app") == ("app:app", "sql-7")


def test_all_that_a_batch_does_has_one_root_and_a_stream_that_it_starts_another() -> None:
    setting = {BATCH_SETTING: batch_tag("q", 3, 6)}
    own = {"spark.sql.execution.root.id": "9"}
    assert root_of(SQL | own | setting) == "6"
    assert root_of(SQL | own | setting | {"sql.streaming.queryId": "q"}) == "6"
    assert root_of(SQL | own | setting | {"sql.streaming.queryId": "another"}) == "9"
    assert root_of(SQL) == "7"


def test_a_setting_of_a_streams_session_says_the_batch_where_a_thread_does_not() -> None:
    asked = SQL | IN_STREAM | {BATCH_SETTING: batch_tag("q", 3, 6)}
    assert epoch_of(asked, "app") == ("q", 3)
    assert batch_of(asked) == ("q", 3)
    # What the thread itself has entered comes first, except that a batch is in no epoch.
    assert epoch_of(asked | {"clonos.epoch": "daily"}, "app") == ("batch", "daily")
    assert batch_of(SQL | IN_STREAM) is None
    assert batch_of({"spark.job.tags": epoch_tag("daily", 5)}) is None
