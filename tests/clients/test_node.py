"""The official client for Node, unchanged, against a running daemon."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.daemon.running import Daemon

pytestmark = [pytest.mark.node, pytest.mark.slow]

SCRIPT = """
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none", maxRetries: 0 });
const told = {};
told.models = (await client.models.list()).data.map((model) => model.id);
const fields = {
  model: "ember", temperature: 0, max_tokens: 16,
  messages: [{ role: "user", content: "Hello! My name is Ada." }],
};
const plain = await client.chat.completions.create(fields);
told.plain = plain.choices[0].message.content;
told.cached = plain.usage.prompt_tokens_details.cached_tokens;
const stream = await client.chat.completions.create(
  { ...fields, stream: true, stream_options: { include_usage: true } });
told.streamed = "";
for await (const chunk of stream) {
  told.streamed += chunk.choices[0]?.delta?.content ?? "";
  told.usage = chunk.usage ?? told.usage;
}
const helper = client.chat.completions.stream(fields);
told.helped = (await helper.finalChatCompletion()).choices[0].message.content;
const prompt = "<|im_start|>user\\nHello! My name is Ada.<|im_end|>\\n<|im_start|>assistant\\n";
told.text = (await client.completions.create(
  { model: "ember", prompt, temperature: 0, max_tokens: 16 })).choices[0].text;
try {
  await client.chat.completions.create({ ...fields, temperature: 9 });
} catch (error) {
  told.refused = [error.constructor.name, error.status, error.param, error.code];
}
const left = await client.chat.completions.create({ ...fields, max_tokens: 4000, stream: true });
for await (const chunk of left) { left.controller.abort(); break; }
console.log(JSON.stringify(told));
"""


def test_the_official_node_client(daemon: Daemon, tmp_path: Path):
    (tmp_path / "package.json").write_text('{"type": "module", "private": true}')
    (tmp_path / "ask.js").write_text(SCRIPT)
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "openai"]
    subprocess.run(install, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    got = subprocess.run(
        ["node", "ask.js", daemon.url], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert got.returncode == 0, got.stderr
    told = json.loads(got.stdout)
    assert told["models"] == ["ember"]
    assert told["plain"] == told["streamed"] == told["helped"] == told["text"] != ""
    assert told["usage"]["prompt_tokens_details"]["cached_tokens"] >= told["cached"] >= 0
    assert told["refused"] == ["BadRequestError", 400, "temperature", "invalid_value"]
