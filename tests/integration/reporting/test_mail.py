"""Test reports as mail, received by a real server."""

from __future__ import annotations

import email
import ssl
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any

import pytest

from headgate.adapters.reporters.mail import MailReporter, MailServer
from headgate.ports.reporter import ReporterAway, ReportPutOff, ReportRefused
from headgate.testing.servers.certificates import make

from .reports import Mailbox, mailbox, outbox_message

HERE = Path(".")


def reporter(box: Mailbox, **settings: str) -> MailReporter:
    usual = {
        "server": "localhost",
        "port": str(box.port),
        "default_from": "gate@example.org",
        "default_to": "a@example.org",
    }
    return MailReporter(MailServer.of(usual | settings, HERE))


def read(box: Mailbox, number: int = -1) -> EmailMessage:
    found = email.message_from_bytes(box.mails[number].content or b"", policy=default)
    assert isinstance(found, EmailMessage)
    return found


async def test_a_mail_contains_the_result_of_the_change() -> None:
    async with mailbox() as box:
        await reporter(box).tell(outbox_message())
        await reporter(box).tell(outbox_message())
        await reporter(box).tell(outbox_message("k2", change="topic,99999999", report="success"))
    mail = read(box, 0)
    assert box.mails[0].mail_from == "gate@example.org" and box.mails[0].rcpt_tos == ["a@example.org"]
    assert mail["Subject"] == "[gate] code/api topic,abcdef12 failed: Make it faster"
    assert "- unit : FAILURE" in mail.get_content()
    assert "https://gate.example/t/example/buildset/b1" in mail.get_content()
    assert mail["Auto-Submitted"] == "auto-generated"
    assert read(box, 1)["Message-ID"] == mail["Message-ID"] != read(box, 2)["Message-ID"], "sent again it is the same"
    assert read(box, 2)["References"] == mail["References"], "what is told of one change is one thread"


async def test_the_pipeline_sets_recipients_sender_and_subject() -> None:
    options = {
        "to": "b@example.org, c@example.org",
        "from": "Gate <g@example.org>",
        "subject": "{change} {result} {no}",
    }
    async with mailbox() as box:
        await reporter(box).tell(outbox_message(options=options))
    mail = read(box)
    assert box.mails[0].rcpt_tos == ["b@example.org", "c@example.org"] and box.mails[0].mail_from == "g@example.org"
    assert mail["Subject"] == "topic,abcdef12 FAILURE {no}"


@pytest.mark.parametrize(
    "subject",
    [
        "x\r\nBcc: evil@example.org",
        "x\nTo: evil@example.org\n\nbody",
        "\ud800" + "y" * 100_000,
        "a\u202eb\x00c",
        "=?utf-8?q?x?=",
    ],
)
async def test_the_subject_of_a_change_cannot_add_headers_or_long_lines_to_a_mail(subject: str) -> None:
    async with mailbox() as box:
        await reporter(box).tell(outbox_message(subject=subject, message="Build failed.\r\n.\r\nQUIT\r\n" + subject))
    mail, raw = read(box), box.mails[0].content
    assert (
        box.mails[0].rcpt_tos == ["a@example.org"] and mail["Bcc"] is None and mail.get_all("To") == ["a@example.org"]
    )
    assert isinstance(raw, bytes) and max(len(line) for line in raw.split(b"\r\n")) < 998
    assert len(mail["Subject"]) <= 250 and "evil" not in str(mail["To"])


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"to": "a@example.org\r\nRCPT TO:<evil@example.org>"}, "not an address"),
        ({"to": "<a@example.org>"}, "not an address"),
        ({"to": '"a b"@example.org'}, "not an address"),
        ({"to": " ".join(f"a{n}@example.org" for n in range(51))}, "51 recipients, more than 50"),
        ({"to": "a@elsewhere.example"}, "not allow pipelines to send to"),
        ({"from": "nobody"}, "not an address to send from"),
    ],
)
async def test_invalid_and_forbidden_recipients_are_refused_and_nothing_is_sent(
    options: dict[str, Any], why: str
) -> None:
    async with mailbox() as box:
        with pytest.raises(ReportRefused, match=why):
            await reporter(box, recipients="@example.org").tell(outbox_message(options=options))
    assert not box.mails


async def test_a_missing_recipient_is_reported() -> None:
    async with mailbox() as box:
        with pytest.raises(ReportRefused, match="default_to"):
            await reporter(box, default_to="").tell(outbox_message())


async def test_the_answer_of_the_mail_server_decides_whether_a_mail_is_sent_again() -> None:
    async with mailbox() as box:
        box.answers["a@example.org"] = "450 later"
        with pytest.raises(ReportPutOff, match="450 later"):
            await reporter(box).tell(outbox_message())
        box.answers["a@example.org"] = "550 no such user"
        with pytest.raises(ReportRefused, match="550 no such user"):
            await reporter(box).tell(outbox_message())
        box.answers.clear()
        box.answer = "554 looks like spam"
        with pytest.raises(ReportRefused, match="looks like spam"):
            await reporter(box).tell(outbox_message())
        box.answer = "451 try again"
        with pytest.raises(ReportPutOff, match="451 try again"):
            await reporter(box).tell(outbox_message())
    with pytest.raises(ReporterAway, match=f"localhost:{box.port}"):
        await reporter(box).tell(outbox_message())


async def test_a_retried_mail_is_not_sent_again_to_those_who_received_it() -> None:
    options = {"to": "a@example.org, b@example.org, c@example.org"}
    async with mailbox() as box:
        mails = reporter(box)
        box.answers |= {"b@example.org": "450 later", "c@example.org": "450 later"}
        with pytest.raises(ReportPutOff, match=r"b@example\.org: 450 later; c@"):
            await mails.tell(outbox_message(options=options))
        del box.answers["b@example.org"]
        with pytest.raises(ReportPutOff, match=r"^c@example\.org: 450 later"):
            await mails.tell(outbox_message(options=options))
        box.answers.clear()
        await mails.tell(outbox_message(options=options))
        await mails.tell(outbox_message("k2", options=options))
    sent = [[to[0] for to in mail.rcpt_tos] for mail in box.mails]
    assert sent == [["a"], ["b"], ["c"], ["a", "b", "c"]]
    assert {read(box, number)["To"] for number in range(4)} == {options["to"]}
    assert len({read(box, number)["Message-ID"] for number in range(3)}) == 1


async def test_the_connection_is_encrypted_and_the_password_is_never_sent_in_clear(tmp_path: Path) -> None:
    files, context = make(tmp_path), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.server)
    login = {"security": "starttls", "user": "gate", "password": "right", "ca": str(files.authority)}
    async with mailbox(tls_context=context, require_starttls=True) as box:
        await reporter(box, **login).tell(outbox_message())
        assert box.logins == [("gate", "right")] and box.encrypted == [True]
        with pytest.raises(ReporterAway, match=r"(?i)authentication"):
            await reporter(box, **login | {"password": "wrong"}).tell(outbox_message())
        with pytest.raises(ReporterAway, match=r"(?i)certificate"):
            await reporter(box, **login | {"ca": ""}).tell(outbox_message())
    async with mailbox() as plain:  # it has no STARTTLS: no credentials are sent to it
        with pytest.raises(ReporterAway, match="STARTTLS"):
            await reporter(plain, **login).tell(outbox_message())
    assert not plain.logins and not plain.mails
