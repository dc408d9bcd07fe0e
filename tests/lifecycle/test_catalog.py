"""Which models are known, and by which names."""

from pathlib import Path

import pytest

from ignisd.catalog import Catalog, Known
from ignisd.errors import ConfigError
from ignisd.planning import EMBEDDED, find_model


def add(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir(parents=True)
    (made / "config.json").touch()
    return made


def test_without_a_folder_there_is_the_one_model() -> None:
    catalog = Catalog(EMBEDDED, None)
    assert catalog.known() == (Known(EMBEDDED, EMBEDDED),)
    assert catalog.find(EMBEDDED) == catalog.first
    assert catalog.find("other") is None


def test_the_first_model_may_lie_elsewhere_and_can_be_switched_back_to(tmp_path: Path) -> None:
    elsewhere = add(tmp_path / "elsewhere", "mine")
    add(tmp_path / "models", "other")
    catalog = Catalog(str(elsewhere), tmp_path / "models")
    assert [one.name for one in catalog.known()] == ["mine", "other"]
    assert catalog.find("mine") == Known("mine", str(elsewhere))
    assert find_model(str(elsewhere), tmp_path / "models") == ("mine", elsewhere)


def test_a_folder_goes_by_its_own_name_and_a_name_is_no_path(tmp_path: Path) -> None:
    add(tmp_path / "store", "4f2c")
    models = tmp_path / "models"
    models.mkdir()
    (models / "nice").symlink_to(tmp_path / "store" / "4f2c")
    (models / "gone").symlink_to(tmp_path / "nothing")
    add(models, "x@agent")
    catalog = Catalog(EMBEDDED, models)
    assert [one.name for one in catalog.known()] == [EMBEDDED, "nice"]
    assert find_model("nice", models) == ("nice", models / "nice")
    for name in ("../store/4f2c", str(tmp_path / "store" / "4f2c"), ".", ""):
        assert catalog.find(name) is None


def test_a_folder_that_is_not_there_is_refused_by_name_and_one_that_goes_is_not_missed(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="--models-dir"):
        Catalog(EMBEDDED, tmp_path / "nothing")
    with pytest.raises(ConfigError, match="no config"):
        Catalog("nothing", tmp_path)
    models = tmp_path / "models"
    models.mkdir()
    catalog = Catalog(EMBEDDED, models)
    models.rmdir()
    assert catalog.known() == (catalog.first,)
