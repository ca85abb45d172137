"""Messages put together by hand, as FLARE's decoder reads them: objects that no FLARE process would send so."""

import uuid

import msgpack
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.shareable import ReservedHeaderKey
from nvflare.fuel.utils.fobs.lobs import MARKER_MAIN, _Header

KINDS = "nvflare.fuel.utils.fobs.decomposer"
SHAREABLE, DATUM = "nvflare.apis.shareable.Shareable", "nvflare.fuel.utils.fobs.datum.Datum"


def named(kind, data, decomposer=f"{KINDS}.DataClassDecomposer"):
    """An object of a class, by the class's name."""
    return {"__fobs_type__": kind, "__fobs_data__": data, "__fobs_dc__": decomposer}


def file_at(path):
    """A datum of a file."""
    parts = {"datum_id": str(uuid.uuid4()), "datum_type": 3, "dot": 0, "value": str(path)}
    return named(DATUM, {"data": parts})


def with_cookie(cookie):
    """A message with a cookie, which FLARE sends back with the answer."""
    headers = {
        ReservedHeaderKey.COOKIE_JAR: {"cookie": cookie},
        ReservedHeaderKey.PEER_PROPS: {ReservedKey.IDENTITY_NAME: "server"},
    }
    return named(SHAREABLE, {"__headers__": headers}, f"{KINDS}.DictDecomposer")


def encoded(body):
    """The bytes of a message."""
    packed = msgpack.packb(body)
    return _Header(MARKER_MAIN, 0, len(packed)).to_bytes() + packed


def section(marker, content):
    """The bytes of a section behind a message."""
    header = _Header(marker, 0, 16 + len(content))
    return header.to_bytes() + uuid.uuid4().bytes + content
