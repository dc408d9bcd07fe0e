import json

import pytest

from ignisd.chat.checkpoint import read_model_info
from ignisd.chat.types import SamplingFields
from ignisd.errors import ConfigError
from tests.chat.toy import NOON, TEMPLATE, raw_tokenizer


@pytest.fixture
def folder(tmp_path):
    raw_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return tmp_path


def read(folder):
    return read_model_info(folder, "toy", 512, lambda: NOON)


def test_a_directory_without_generation_config_is_neutral(folder):
    model = read(folder)
    assert model.defaults.sampling == SamplingFields()
    ends = [model.tokenizer.token_id(text) for text in ("<|endoftext|>", "<|im_end|>")]
    assert sorted(model.defaults.eos_ids) == sorted(ends)
    assert model.created_s == int(NOON.timestamp())


def test_generation_config_gives_sampling_and_ends(folder):
    config = {"temperature": 0.5, "top_k": 20, "top_p": 0.9, "eos_token_id": [7, 9], "do_sample": 1}
    (folder / "generation_config.json").write_text(json.dumps(config))
    model = read(folder)
    assert model.defaults.sampling == SamplingFields(temperature=0.5, top_k=20, top_p=0.9)
    assert {7, 9} < set(model.defaults.eos_ids)
    (folder / "generation_config.json").write_text('{"eos_token_id": 8}')
    assert 8 in read(folder).defaults.eos_ids
    (folder / "generation_config.json").write_text('{"do_sample": false, "temperature": 0.7}')
    assert read(folder).defaults.sampling.temperature == 0.0


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("generation_config.json", '{"top_p": 7}', "top_p"),
        ("generation_config.json", '{"temperature": "hot"}', "temperature"),
        ("generation_config.json", "{", "JSON"),
        ("generation_config.json", "[]", "object"),
        ("generation_config.json", '{"eos_token_id": "end"}', "eos_token_id"),
        ("tokenizer.json", "{}", "tokenizer"),
        ("tokenizer_config.json", "{}", "chat template"),
        ("chat_template.jinja", "{% broken", "template"),
    ],
)
def test_a_file_that_is_wrong_refuses_the_start_and_is_named(folder, name, content, words):
    (folder / name).write_text(content)
    with pytest.raises(ConfigError, match=words):
        read(folder)


def test_a_missing_tokenizer_refuses_the_start(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match="missing"):
        read(folder)


def test_a_tokenizer_of_another_kind_refuses_the_start(folder):
    tokenizer = raw_tokenizer()
    description = json.loads(tokenizer.to_str())
    description["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (folder / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(ConfigError, match="WordPiece"):
        read(folder)


def test_the_template_is_found_wherever_it_is_kept(folder):
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": [{"name": "default", "template": TEMPLATE}]})
    )
    read(folder)
    (folder / "tokenizer_config.json").unlink()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    read(folder)
    (folder / "chat_template.json").unlink()
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    read(folder)
