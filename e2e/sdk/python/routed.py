"""The official openai package against a route with another name than its model, with places in the queue in the stream."""

import json
import sys

import openai

target = json.loads(sys.argv[1])
client = openai.OpenAI(base_url=target["base_url"], api_key=target["key"], timeout=60, max_retries=0)
messages = [{"role": "user", "content": "hello"}]

raw = client.chat.completions.with_raw_response.create(
    model="gpt-4o", messages=messages, user="sim:tokens=4", stream=True, extra_headers={"X-IOP-Queue-Updates": "1"}
)
assert raw.headers["x-iop-queue-position"] == "3", raw.headers
text, models = "", set()
for chunk in raw.parse():
    models.add(chunk.model)
    text += chunk.choices[0].delta.content or ""
assert (text, models) == ("hello t1 t2 t3", {"gpt-4o"}), (text, models)

whole = client.chat.completions.create(model="chat", messages=messages, user="sim:tokens=4")
assert (whole.model, whole.choices[0].message.content) == ("chat", "hello t1 t2 t3"), whole
assert {"chat", "gpt-4o"} <= {m.id for m in client.models.list()}, client.models.list()
