"""What the official packages make of a provider's own 429 with Retry-After. The Go test looks at the runs that were booked."""

from concurrent.futures import ThreadPoolExecutor

from clients import Chat, Messages, Responses
from matrix import seen
from ollamas import Ollama
from world import WORLD, holds, moment, run, same


class Patient:
    """A driver whose client tries as often again as it does by itself."""

    def client(self, session, key=None):
        return super().client(session, key).with_options(max_retries=2)


DRIVERS = [
    (Chat(), type("PatientChat", (Patient, Chat), {})()),
    (Responses(), type("PatientResponses", (Patient, Responses), {})()),
    (Messages("anthropic", "authorization", "2026-10-21"), type("PatientMessages", (Patient, Messages), {})("anthropic", "authorization", "2026-10-21")),
    (Ollama(), None),
]


def refused(d, session, model, text, stream):
    """Ask once, and be told of the provider's 429."""
    try:
        got = d.call(session, model, text, stream=stream)
    except Exception as e:
        same(type(e), d.error(429))
        same(e.status_code, 429)
        response = getattr(e, "response", None)  # the ollama package shows no headers
        if response is not None:
            same(response.headers["retry-after"], "1")
            same(int(response.request.headers.get("x-stainless-retry-count", 0)), 0)
        return
    raise AssertionError(f"no error, but {got!r}")


def order(number, n, more):
    """What no other request orders: the simulator fails the first with the same order."""
    return f"sim:status=429,{more},fail_first=1,tokens={3 + WORLD['failing_from'] + 4 * number + n}"


def tells(d, patient, kind, session, model, number):
    """Each 429 is told as one, in a stream as well; who comes while the provider rests waits, and so does a client that tries again."""
    say = lambda n: f"{order(number, n, 'retry_after=1')} {session}"
    refused(d, session, model, say(0), False)
    refused(d, session, model, say(1), True)
    if patient:
        same(patient.call(session, model, say(2)).text.split()[0], session)
    else:
        same(d.call(session, model, f"sim:tokens=3 {session}").text.split()[0], session)
    at = [moment(r["started"]) for r in seen(session, kind)]
    same(len(at), 4 if patient else 3, "requests that reached the provider")
    for before, after in zip(at, at[1:]):
        holds(after - before > 0.9, f"the provider was asked again after {after - before:.2f} s")


def takes_over(d, kind, session, model, number):
    """Where another provider has the model the client notices nothing, and the first is left alone."""
    for stream in (True, False, True):
        got = d.call(session, model, f"{order(number, 3, 'retry_after=60')} {session}", stream=stream)
        holds(got.text.startswith(f"{session} t1 t2"), got)
    same(len(seen(session, kind)), 4, "requests that reached a provider")


def cases():
    for i, (d, patient) in enumerate(DRIVERS):
        for j, kind in enumerate(WORLD["kinds"][i]):
            model, name = f"python-{i}-{kind}", f"{d.name}/{kind}/"
            session, number = WORLD["script"] + "/" + name, 2 * i + j
            yield name + "tells", lambda d=d, p=patient, k=kind, s=session, m=model, n=number: tells(d, p, k, s + "tells", m + "-solo", n)
            yield name + "takes_over", lambda d=d, k=kind, s=session, m=model, n=number: takes_over(d, k, s + "takes_over", m + "-pair", n)


with ThreadPoolExecutor(16) as pool:
    list(pool.map(lambda one: run(*one), cases()))
