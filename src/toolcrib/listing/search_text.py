"""Text → the words by which tools are found: split, stemmed, without filler, with related words for queries.

In: names, descriptions, queries. Out: words for `search`. Everything is general English of software; there is nothing
about particular servers.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

MAX_QUERY = 1000
"""Characters of a query that count."""
_MAX_WORDS = 32
_MAX_WORD = 40
"""Longer ones are data, and stems are cached."""

_LITERAL_WEIGHT = 0.3
"""A path, an address or a quotation is usually an argument and says little about the tool."""
_KIND_WEIGHT = 0.5
_RELATED_WEIGHT = 0.6
_POSITION = 0.07
"""Requests begin with what is to be done, so each further word counts less."""

_RUN = re.compile(r"[^\W_]+")
_WORD = re.compile(r"[A-Z]{2,}s?(?![a-z])|[A-Z]?[a-z]+|\d+|[A-Z]")
_NUMBERED = re.compile(r"[A-Za-z]{1,3}\d{1,2}[A-Za-z]?")
"""k8s, s3, ec2: one word."""
_APOSTROPHE = re.compile(r"['\u2019](?:s|t|re|ve|ll|m|d)\b")
_LITERAL = re.compile(
    r"""(?P<url>https?://\S+)"""
    r"""|"[^"]{1,200}"|(?<!\w)'[^']{1,200}'(?!\w)|`[^`]{1,200}`"""
    r"""|(?P<file>(?<![\w/.~])[~.]{0,2}/[\w./-]+|\b[\w-]{1,100}\.[A-Za-z][A-Za-z0-9]{0,4}\b)"""
)

_FILLER_WORDS = """
a able about across after again all already also am an and another any anything are as at be been before being between
both but by called can could did do does doing during each every everyone everything for from give got had has have
having he her here him his how i if in inside instead into is it its just let like maybe me more most much my named
need needs now of on one only or other our out over per please really said same saying says she should so some
somebody someone something still such tell than that the their them then there these they thing things this those
titled to too under until up us use used using very via want wants was way we were what when where which while who
whom whose why will with within without would you your
"""
_FILLER = frozenset(_FILLER_WORDS.split())

_SAME = {
    # Abbreviations and spellings, in tools and queries alike.
    "apis": "api",
    "app": "application",
    "apps": "application",
    "args": "argument",
    "colour": "color",
    "config": "configuration",
    "db": "database",
    "dbs": "database",
    "dir": "directory",
    "docs": "documentation",
    "env": "environment",
    "ids": "id",
    "img": "image",
    "info": "information",
    "k8s": "kubernetes",
    "mr": "merge",
    "mrs": "merge",
    "msg": "message",
    "param": "parameter",
    "params": "parameter",
    "pr": "pull",
    "prs": "pull",
    "repo": "repository",
    "repos": "repository",
}

_PHRASES = {
    # Words that mean something else together, in queries.
    "bug report": "issue",
    "error report": "issue",
    "feature request": "issue",
    "log in": "login",
    "sign in": "login",
    "to do": "todo",
}
_OPENS = re.compile(
    r"\b(?:open|file|raise|log)(?= (?:an? )?(?:new )?(?:issue|bug|ticket|pull|pr|mr|merge|incident|request)\b)",
    re.IGNORECASE,
)
"""Words that mean to create, in front of these."""
_PHRASE = re.compile(rf"\b({'|'.join(_PHRASES)})(?=s?\b)", re.IGNORECASE)

# A query's word also finds the others of its groups.
_GROUPS = """
create make new add insert build generate; add append attach put insert include;
delete remove drop erase destroy purge clear forget wipe empty discard;
show list get view see display fetch read retrieve look; update edit modify change alter set replace rewrite;
find search lookup query locate look discover; send post publish push deliver submit broadcast;
receive get fetch consume poll next; run execute perform invoke launch start trigger;
stop cancel terminate end kill abort quit shutdown; finish complete done resolve close; close dismiss terminate exit;
open launch start; open raise create; begin start; rename move; move transfer migrate;
undo revert rollback restore back; combine merge join concatenate; split divide partition;
duplicate copy clone fork replicate; restart rerun retry repeat reboot; save store write persist keep;
download save export; import load ingest upload; upload attach; convert transform translate; enable activate;
disable deactivate; toggle switch flag feature; lock protect restrict; share grant invite;
allow permission access grant authorize policy; approve review accept; reject decline deny; assign owner assignee;
verify check validate lint test inspect; correct valid fix; analyze inspect examine explain troubleshoot diagnose;
compute calculate evaluate; difference diff compare; summarize summary abstract overview; question ask answer;
reply respond answer thread; recommend suggest; guide help instruction tutorial; wait pause sleep delay;
silence mute pause snooze; watch monitor follow track observe; follow subscribe watcher follower; folder directory;
file document; picture image photo screenshot; screen display screenshot; video recording record clip;
audio sound speech voice; website site webpage page url link; internet web online; crawl scrape; go navigate visit;
previous back; user person people member; customer client contact; account profile user; team group organization;
message chat conversation; channel room; email mail inbox; meeting event calendar appointment;
task todo reminder ticket; ticket issue bug; bug error failure crash exception; comment note remark annotation;
highlight annotation; knowledge memory remember fact; doc document documentation; manual documentation reference;
wiki page article; paper article preprint publication; cite citation reference bibliography; repository repo project;
branch checkout; history log audit changelog; output log console; stash shelve aside; version release revision;
publish deploy release; deploy deployment rollout; ci build pipeline workflow; pipeline workflow job; pr pull;
mr merge; database db; table sheet spreadsheet; schema structure column field; row record document entry item;
element item entry; value number amount; sql select query; filter condition criteria where;
count number many total size; size space big large length; aggregate group summarize; index indexes indices;
expire expiration ttl timeout; key name; kubernetes k8s; container docker pod; machine host server instance node;
function lambda serverless; cluster node; cloud aws; alert alarm notify notification; incident outage;
metric statistic measurement; graph chart plot; graph network relation relationship; dashboard report; trace span;
configuration config setting option preference; environment env; variable env; parameter argument;
secret credential password token; login authenticate signin auth; phone mobile device; app application;
machine computer; tap click press touch; type enter write input; swipe scroll; rotate orientation landscape portrait;
popup dialog modal prompt alert; dropdown select choose option; form field input; http request network api;
call request invoke; colour color format style; bold format style font; image logo icon; schedule plan;
time hour clock date timezone; recent last latest newest; place location address coordinate position;
coordinate latitude longitude geocode; route direction drive navigation; distance travel matrix duration;
height elevation altitude; nearby around close; shop store restaurant poi; script program code; label tag category;
sort order rank; hide invisible visibility; draft template; price cost usage billing; payment charge invoice bill;
buy purchase order; product item catalog; weather forecast temperature; music song track playlist;
stock share quote ticker; language translate locale; optimize speed performance slow fast; simulate mock pretend fake;
hand assign give transfer; browser page tab; window tab; research investigate study
"""


def words_of(text: str) -> list[str]:
    """The stems of a text, in order, without filler words."""
    if not text.isascii():
        decomposed = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in decomposed if not unicodedata.combining(char))
    return [stem(word[:_MAX_WORD]) for run in _RUN.findall(text) for word in _split(run) if word not in _FILLER]


def _split(run: str) -> list[str]:
    """readFile → read, file."""
    if not run.isascii():
        return [run.casefold()]
    if (run.islower() and run.isalpha()) or _NUMBERED.fullmatch(run):
        return [run.lower()]
    return [word.lower() for word in _WORD.findall(run)]


@lru_cache(16_384)
def stem(word: str) -> str:
    """Plurals, -ing and -ed removed. Both sides of a comparison are stemmed, so the result need not be a word."""
    word = _SAME.get(word, word)
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 4 and word.endswith(("sses", "xes", "ches", "shes", "zes")):
        word = word[:-2]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        start = word.removesuffix(ending)
        if start != word and len(start) >= 3 and not word.endswith("eed") and not _VOWELS.isdisjoint(start):
            doubled = len(start) > 3 and start[-1] == start[-2] and start[-1] not in "lsz"
            word = start[:-1] if doubled else start
            break
    return word.removesuffix("e") if len(word) > 4 else word


_VOWELS = frozenset("aeiouy")


def _related() -> dict[str, tuple[str, ...]]:
    found: dict[str, dict[str, None]] = {}
    for group in _GROUPS.replace("\n", " ").split(";"):
        stems = [stem(word) for word in group.split()]
        for one in stems:
            found.setdefault(one, {}).update(dict.fromkeys(other for other in stems if other != one))
    return {word: tuple(others) for word, others in found.items()}


_RELATED = _related()


def reworded(query: str) -> str:
    """The query, with phrases in the words of tools."""
    query = _APOSTROPHE.sub("", query[:MAX_QUERY])
    return _OPENS.sub("create", _PHRASE.sub(lambda phrase: _PHRASES[phrase[1].lower()], query))


def query_words(query: str) -> dict[str, float]:
    """The query's stems with their weights, at most a few dozen. Empty if it has only filler words."""
    query = reworded(query)
    found: dict[str, float] = {}

    def add(text: str, weight: float, later: float = 0.0) -> None:
        for position, word in enumerate(words_of(text)):
            if len(found) < _MAX_WORDS or word in found:
                found[word] = max(found.get(word, 0.0), weight / (1 + later * position))

    add(_LITERAL.sub(" ", query), 1.0, _POSITION)
    for literal in _LITERAL.finditer(query):
        if literal.lastgroup:
            add(literal.lastgroup, _KIND_WEIGHT)
        add(literal[0], _LITERAL_WEIGHT)
    return found


def related(word: str) -> Iterator[tuple[str, float]]:
    for other in _RELATED.get(word, ()):
        yield other, _RELATED_WEIGHT
