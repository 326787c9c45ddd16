"""Reads bodies as servers in Python do.

Each line of the input is {"type", "body" (base64)}. Each line of the output has what each reader found in it: of a form its
parts, as [kind, name, content (base64)], of JSON the model; or the reader's error as a text.
"""

import asyncio
import base64
import io
import json
import logging
import sys
import warnings

import aiohttp.web
from aiohttp.test_utils import make_mocked_request
from python_multipart import create_form_parser
from starlette.datastructures import UploadFile
from starlette.requests import Request as StarletteRequest
from werkzeug.wrappers import Request as WerkzeugRequest


def part(kind, name, content):
    """One part of a form."""
    if isinstance(content, str):
        content = content.encode()
    if isinstance(name, bytes):
        name = name.decode()
    return [kind, name or "", base64.b64encode(content).decode()]


def starlette_request(content_type, body):
    """A request that FastAPI, and vLLM and LiteLLM with it, would be given."""

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"content-type", content_type.encode("latin-1")), (b"content-length", str(len(body)).encode())]
    return StarletteRequest({"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}, receive)


async def starlette_form(content_type, body):
    form = await starlette_request(content_type, body).form()
    return [
        part("file", name, await value.read()) if isinstance(value, UploadFile) else part("field", name, value)
        for name, value in form.multi_items()
    ]


async def python_multipart_form(content_type, body):
    parts = []

    def on_file(file):
        file.file_object.seek(0)
        parts.append(part("file", file.field_name, file.file_object.read()))

    parser = create_form_parser(
        {"Content-Type": content_type, "Content-Length": str(len(body))},
        lambda field: parts.append(part("field", field.field_name, field.value or b"")),
        on_file,
    )
    parser.write(body)
    parser.finalize()
    return parts


async def werkzeug_form(content_type, body):
    request = WerkzeugRequest({
        "REQUEST_METHOD": "POST", "CONTENT_TYPE": content_type, "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body),
    })
    fields = [part("field", name, value) for name, values in request.form.lists() for value in values]
    return fields + [part("file", name, f.read()) for name, files in request.files.lists() for f in files]


def aiohttp_request(content_type, body):
    stream = aiohttp.StreamReader(NoProtocol(), 2**16, loop=asyncio.get_running_loop())
    stream.feed_data(body)
    stream.feed_eof()
    return make_mocked_request(
        "POST", "/", headers={"Content-Type": content_type, "Content-Length": str(len(body))}, payload=stream, client_max_size=1 << 30
    )


class NoProtocol:
    """What a StreamReader wants to slow down."""

    _reading_paused = False

    def pause_reading(self):
        pass

    def resume_reading(self, *_, **__):
        pass


async def aiohttp_form(content_type, body):
    parts = []
    for name, value in (await aiohttp_request(content_type, body).post()).items():
        if isinstance(value, aiohttp.web.FileField):
            parts.append(part("file", name, value.file.read()))
        else:
            parts.append(part("field", name, bytes(value) if isinstance(value, bytearray) else value))
    return parts


async def starlette_json(content_type, body):
    """LiteLLM's proxy reads a form where the content type has that word."""
    request = starlette_request(content_type, body)
    if "form" in content_type:
        return (await request.form()).get("model")
    return (await request.json())["model"]


async def werkzeug_json(content_type, body):
    request = WerkzeugRequest({
        "REQUEST_METHOD": "POST", "CONTENT_TYPE": content_type, "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body),
    })
    return request.form["model"] if request.form else request.get_json()["model"]


async def aiohttp_json(content_type, body):
    request = aiohttp_request(content_type, body)
    if request.content_type == "application/x-www-form-urlencoded":
        return (await request.post())["model"]
    return (await request.json())["model"]


FORMS = {"starlette": starlette_form, "python-multipart": python_multipart_form, "werkzeug": werkzeug_form, "aiohttp": aiohttp_form}
JSON = {"starlette": starlette_json, "werkzeug": werkzeug_json, "aiohttp": aiohttp_json}


async def read(reader, content_type, body):
    try:
        found = await reader(content_type, body)
    except Exception as error:  # whatever a reader raises
        return f"{type(error).__name__}: {error}"
    return found if isinstance(found, list) else {"model": found}


async def main():
    logging.disable()  # of forms that a reader does not take
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        task = json.loads(line)
        body = base64.b64decode(task["body"])
        readers = FORMS if task["type"].startswith("multipart/") else JSON
        print(json.dumps({name: await read(reader, task["type"], body) for name, reader in readers.items()}), flush=True)


asyncio.run(main())
