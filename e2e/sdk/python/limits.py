"""What the official client for Python makes of a key's limits."""

import time

import openai

from world import WORLD, TIMEOUT, check, client, refused_so_far, run_all, same


def ask(c, **options):
    return c.chat.completions.create(model="sim-small", messages=[{"role": "user", "content": "hello"}], **options)


def limited(c, **options):
    """Return the error that a request over a limit must raise."""
    try:
        ask(c, **options)
    except openai.RateLimitError as e:
        same(type(e), openai.RateLimitError)
        same(e.status_code, 429)
        return e
    raise AssertionError("it was served")


@check("limits/requests")
def requests():
    c = client(WORLD["keys"]["rpm"], max_retries=0)
    for left in (2, 1, 0):
        raw = c.chat.completions.with_raw_response.create(model="sim-small", messages=[{"role": "user", "content": "hello"}])
        same(raw.headers["x-ratelimit-remaining-requests"], str(left))
    e = limited(c)
    same(e.code, "rate_limit_exceeded")
    same(e.type, "rate_limit_error")
    assert "3 requests per minute" in str(e), e
    assert 1 <= int(e.response.headers["retry-after"]) <= 20, e.response.headers


@check("limits/retry_waits")
def retry_waits():
    """A client with retries waits as long as it is told, and then is served."""
    for _ in range(10):
        told, began = spent(client(WORLD["keys"]["rpm20"], max_retries=0))
        before = refused_so_far()
        ask(client(WORLD["keys"]["rpm20"], max_retries=2))
        took, refused = time.monotonic() - began, refused_so_far() - before
        if refused > 0:  # or a slow machine took so long that there was no need to wait
            break
    assert took > told - 1.2, (took, told)
    same(refused, 1, "requests that were refused")
    return f"told {told} s, took {took:.1f} s"


def spent(c):
    """Ask until the limit is reached. Return the refusal's Retry-After, and when that request began."""
    for _ in range(200):
        began = time.monotonic()
        try:
            ask(c)
        except openai.RateLimitError as e:
            return int(e.response.headers["retry-after"]), began
    raise AssertionError("two hundred requests were served")


@check("limits/concurrency")
def concurrency():
    c = client(WORLD["keys"]["concurrency"], max_retries=0)
    with ask(c, stream=True, user="sim:tokens=100000,itl=20ms") as stream:
        next(iter(stream))
        e = limited(c)
        assert "1 concurrent request." in str(e), e
    again = client(WORLD["keys"]["concurrency"], max_retries=5)
    ask(again)


@check("limits/budget")
def budget():
    """What waiting does not mend is not tried again."""
    before = refused_so_far()
    e = limited(client(WORLD["keys"]["budget"], max_retries=4), max_tokens=50)
    same(e.code, "insufficient_quota")
    assert "budget of 5 tokens per month" in str(e), e
    same(refused_so_far() - before, 1, "requests that were refused")


if __name__ == "__main__":
    run_all()
