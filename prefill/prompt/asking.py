"""Whether a paragraph asks, says how to answer, is mere courtesy, or says something else.

By its marks and by its words: questions without a mark and requests are known in some languages.
Whoever is unsure may look further back for what asks; so what might say how to answer counts as
that, though it might ask as well.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from .paragraphs import CLOSERS, sentences_of

_SHORT = 200  # characters of a question without a mark, of a courtesy


class AskingKind(Enum):
    """What a paragraph is to its reader."""

    ASKS = auto()  # a question mark that ends a sentence, or the word "Question:"
    REQUESTS = auto()  # in words alone
    HEADS = auto()  # the title of a question, which follows
    TRAILS = auto()  # how to answer, thanks, a signature, a switch
    SAYS = auto()


def _words(text: str) -> str:
    return "|".join(text.split())


def _phrases(text: str) -> str:
    """Alternatives, a line each; a space is any space."""
    return "|".join(line.strip().replace(" ", r"\s+") for line in text.strip().splitlines())


_FLAGS = re.IGNORECASE

_SWITCH = re.compile(r"(?:^|(?<=\s))/(?:no_?|no-)?think(?:ing)?\b", _FLAGS)
# A mark before a quotation mark is somebody else's question.
_MARK = re.compile(
    f"(?:[?](?![?!.]*[\"\u201d\u2019\u00bb'])[?!.]*{CLOSERS}(?=\\s|$))"
    "|[\uff1f\u061f\u2047\u2048\u203d\u055e\u1367\u037e\ufe56](?![\u300d\u300f\u201d])"
)
_OPENS = re.compile("(?:^|[\\s(\"'])\u00bf")

_TITLE = _phrases(
    r"""
    (?:my |the |user |user's |final |actual )?(?:question|query|task|request|instruction|prompt)s?
    q
    fragen?
    aufgaben?
    preguntas?
    tareas?
    domand[ae]
    compit[oi]
    tâches?
    consignes?
    perguntas?
    tarefas?
    vragen|vraag
    pytani[ea]
    вопросы?
    задани[ея]
    (?:我的|用户)?(?:问题|問題|提问|任务|任務)
    質問|課題
    질문|과제
    (?:ال)?سؤال
    """
)
_HEAD = re.compile(
    rf"[#>*_<\[(\s-]*(?:\d+[.)]\s*)?(?:{_TITLE})\s*(?:no\.?\s*)?\d*\s*[*_]*(?:[:\uff1a>\]]|$|\s[-\u2013\u2014]\s)[*_>\s]*",
    _FLAGS,
)
# What the model is to begin with, and titles of how to answer.
_ANSWER_HEAD = re.compile(
    r"[#>*_<\[(/\s-]*(?:(?:your |the |final )?(?:answer|response|reply|output|a|assistant)"
    r"(?: format| schema)?|json(?: schema)?|format|schema|antwort|ausgabe|réponse|respuesta"
    r"|risposta|resposta|ответ|答案|回答|答|답|답변)"
    r"\s*[*_]*[:\uff1a>\]][*_>\s]*$",
    _FLAGS,
)

_ANSWERS = re.compile(
    r"\s*[*_]*(?:a|answer|antwort|r(?:é|e)ponse|respuesta|答)[*_]*\s*[:\uff1a]", _FLAGS
)

_LEAD = (
    r"(?:(?:[-*\u2022>#]+|\(?\w{1,3}[.)])\s+)?[*_]*"
    r"(?:(?:please|pls|kindly|now|then|next|first|finally|lastly|also|and|so|but|ok(?:ay)?|well"
    r"|hi(?: there)?|hello|hey|thanks|thank you|bitte|dann|und|por favor"
    r"|s'il (?:te|vous) pla[iî]t"
    r"|per favore|пожалуйста)[\s,.!:]+"
    r"|(?:based on|according to|using|given|from|in|after reading|with|for|considering)\s"
    r"[^,.:;?!\n]{1,80},\s*){0,3}"
)

# Verbs that begin a request, whatever follows; and those that are nouns, too, and need an object.
_VERBS = _words(
    r"""
    summari[sz]e tl;?dr translate explain describe identify extract analy[sz]e compare contrast
    calculate compute determine classify categori[sz]e rewrite rephrase paraphrase proofread
    enumerate elaborate clarify evaluate assess critique interpret infer deduce locate retrieve
    name find tell list give state show write provide count quote cite report mention
    outline draft complete continue fix solve review discuss define pick choose select rank sort
    convert generate create suggest recommend propose highlight point guess predict estimate
    verify check look search figure return output print produce answer
    nenne? finde? liste gib sag zeige? schreibe? erkläre? beschreibe? vergleiche? übersetze?
    fasse berechne bestimme analysiere nennen finden geben sagen zeigen erklären beschreiben
    donne[rz]? nomme[rz]? trouve[rz]? liste[rz]? dis dites explique[rz]? décri[sz]\w* résume[rz]?
    tradui[st]\w* compare[rz]? cite[rz]? indique[rz]?
    di d[ií]me encuentra indica nombra lista explica describe resume traduce compara menciona
    dimmi trova elenca spiega descrivi riassumi traduci confronta indica nomina
    diga encontre indique liste explique descreva resuma traduza compare
    назови\w* найди\w* перечисли\w* скажи\w* объясни\w* опиши\w*
    укажи\w* переведи\w* сравни\w*
    noem vind geef vertel beschrijf vat vertaal
    podaj wymień znajdź opisz wyjaśnij przetłumacz
    """
)
_OBJECT = _phrases(
    r"""
    me|us|the|an?|all|any|each|every|both|this|that|these|those|it|its|them|my|our|your|his|her
    what|which|who|whom|whose|where|when|why|how|whether|if|in|into|from|for|to|with|of|as|out|up
    one|two|three|four|five|six|seven|eight|nine|ten|\d+|at|exactly|only|just|briefly|everything
    der|die|das|den|dem|ein\w*|mir|uns|alle|jed\w+|welche\w*|was|wer|wo|wann|warum|wie
    le|la|les|l'\w+|un|une|des|moi|nous|tous|toutes|quel\w*|qui|où|quand|pourquoi|comment
    el|los|las|una|cuál\w*|qué|quién\w*|il|lo|gli|i|quale|chi|o|os|as|um|uma|qual|quem
    """
)
_REQUEST = re.compile(
    rf"{_LEAD}(?:(?:{_VERBS})\b(?:\s+(?:{_OBJECT})\b|\s*[:\uff1a]?\s*[\"'\u201c\u00ab`]|\s*[:\uff1a.!]?$)"
    r"|tl;?dr\b"
    r"|i(?:'d| would)? (?:want|need|like|love|wish|have)\s+(?:you )?to\s"
    r"|i (?:want|need) (?:the|a|an|all|your|some)\b|i(?:'m| am) (?:looking for|interested in)\b"
    r"|i wonder\b|(?:can|could|would|will) you\b|let me know\b|help me\b|what about\b|how about\b"
    r""
    r"|(?:your|the) (?:task|job|goal|question) is\b|you (?:are to|have to|need to)\b"
    r"|we (?:want|need)\b)",
    _FLAGS,
)
_VERB_FIRST = re.compile(rf"{_LEAD}(?:{_VERBS})\b(?!\s*[:,])", _FLAGS)
_VERB_FIRST_MOST = 80
_INTERROGATIVE = re.compile(
    rf"{_LEAD}(?:(?:what|who|whom|whose|where|when|which|why|how|is|are|was|were|does|do|did|can|could"
    r"|has|have|should|will|would|whats|wer|was|wo|wann|warum|wie|welche\w*|wieviel\w*|qui|que|quoi|où"
    r"|quand|pourquoi|comment|combien|quel\w*|qué|quién|dónde|cuándo|cómo|cuál|cuánto\w*"
    r"|chi|cosa|dove|perché|quanto|quale|quem|onde|кто|что|где|когда"
    r"|почему|как|како\w*|какая|сколько)\b)",
    _FLAGS,
)
_EAST_ASIAN = re.compile(
    "^(?:请|請|帮我|幫我|麻烦|总结|總結|概括|列出|列举|找出|告诉我|告訴我|说明|說明"
    "|解释|解釋|翻译|翻譯|描述|计算|計算|比较|比較|分析|写出|寫出|指出|查找|提取|根据|根據)"
    "|(?:吗|嗎|呢|么|麼)[\u3002!\uff01]?$"
    "|什么|什麼|甚麼|多少|哪[\u4e00-\u9fff]|谁|誰|几|幾|为何|為何|怎么|怎麼|如何|是否"
    "|(?:か|ください|なさい|せよ|教えて)[\u3002!\uff01]?$"
    "|(?:까|나|주세요|십시오|시오|라|요)[.?!]?$"
)
_EAST_ASIAN_FORMAT = re.compile(
    "^(?:请|請)?(?:只|仅|僅|用|以|按|直接|不要|务必|務必|简洁|简短|簡潔)"
    "|^(?:请|請)?(?:回答|输出|輸出|返回)(?:时|時|要|必须|只|用|[\u3002\uff01!]?$)"
    "|(?:のみ|だけ|日本語で|英語で|形式で).{0,20}(?:答|出力)"
    "|(?:만|한국어로|영어로|형식으로).{0,20}(?:답|출력)"
)

_EAST_ASIAN_VERB = re.compile(
    "总结|總結|概括|列出|列举|找出|翻译|翻譯|描述|说明|說明|分析|比较|比較|计算"
)

_FORMAT_THINGS = _words(
    r"""
    json xml yaml csv tsv markdown html latex tables? bullets? bulleted numbered schema format
    formatted words? sentences? characters? tokens? lines? paragraphs? digits? decimals? only
    nothing english german french spanish italian chinese japanese deutsch français tags?
    answers? response output reply plain brief briefly concise concisely short
    """
)
_FORMAT = re.compile(
    rf"{_LEAD}(?:(?:answer|respond|reply|answers?\b.{{0,20}}(?:must|should)|be|stay|do not|don't"
    r"|never"
    r"|always|only|just|no|think|reason|let's|make sure|ensure|remember|note|important|avoid"
    r"|include"
    r"|keep|limit|cite|quote|use|format|wrap|if|when|where|otherwise|without"
    r"|max(?:imum)?|at most"
    r"|no more than|up to|you (?:must|should|may|can|will)|(?:your|the) (?:final )?"
    r"(?:answer|response|output|reply)"
    r"|(?:explain|show|give) your (?:reasoning|work\w*|steps|answer)"
    r"|antworte\w*|nur|benutze|verwende|halte|répond\w*|uniquement|seulement|utilise\w*|responde\w*"
    r"|solo|sólo|únicamente|rispond\w*|soltanto|apenas|somente|отвеча\w*|ответь\w*"
    r"|только|antwoord|odpowiedz\w*)\b"
    rf"|(?:give|write|return|output|print|produce|provide|present|express|state|put|gib|schreibe?|donne\w*)"
    rf"\b.{{0,80}}\b(?:{_FORMAT_THINGS})\b"
    rf"|in (?:{_FORMAT_THINGS}|one|two|three|\d+|a|your own|no more)\b)",
    _FLAGS | re.DOTALL,
)
_COURTESY = re.compile(
    r"[*_>\s-]*(?:(?:many|lots of|a lot of|a million|with|ok(?:ay)?,?)\s+)?(?:"
    + _phrases(
        r"""
        thanks?|thank you|thx|ty|tysm|cheers|appreciate\w*|i(?:'d| would)? (?:really )?appreciate
        much appreciated|any help|sorry|best|kind(?:est)? regards|warm\w* regards|regards|sincerely
        yours|greetings|hi|hello|hey|dear|good (?:morning|afternoon|evening|day|luck)|bye|goodbye
        see you|take care|love|have a (?:nice|great|good)|looking forward|sent from my|please[.!]*$
        can you (?:please )?help|could you (?:please )?help
        i have (?:a|some|another) (?:\w+ )?question
        i need (?:your |some )?help|great|perfect|awesome|cool|nice|ok(?:ay)?|yes|no
        danke|vielen dank|besten dank|herzlichen dank|(?:viele|liebe|beste|herzliche|schöne) grüß\w*
        mit (?:freundlichen|besten|lieben)|grüß\w*|mfg|lg|vg|hallo|guten (?:tag|morgen|abend)|moin
        merci|cordialement|bien (?:à|cordialement)|bonne journée|salutations|bonjour|salut|bonsoir
        (?:muchas )?gracias|saludos|un (?:cordial )?saludo|atentamente|hola|buen[oa]s
        grazie|cordiali saluti|distinti saluti|saluti|ciao|salve|buon\w*
        (?:muito )?obrigad[oa]|atenciosamente|abraços|olá|bom dia|boa (?:tarde|noite)
        спасибо|благодарю|\u0441 уважением|привет|здравству\w*|добрый
        bedankt|dank|met vriendelijke|tack|tak|kiitos|dziękuję|děkuji|teşekkür\w*|mulțumesc
        """
    )
    + r")\b"
    "|[\\s>*-]*(?:谢谢|謝謝|多谢|多謝|感谢|感謝|此致|敬礼|敬禮|祝好|你好|您好|辛苦"
    "|ありがとう|よろしく|宜しく|お願い|こんにちは|감사|고맙|안녕"
    "|شكرا|تحياتي|مرحبا|धन\u094dयव\u093eद|תודה)"
    "|--\\s*$|--\\s*\\n",
    _FLAGS,
)
# A line of a program, in which words and marks mean something else.
_CODE = re.compile(
    r"\s*(?://|#include|\}|@\w+$)|.*[;{}]\s*$"
    r"|\s*(?:def|class|if|elif|else|for|while|try|except|with|return|const|let|var|fn|func|function"
    r"|public|private|static|void|int|import|from|package|using|namespace)\b.*(?:[:=({;]|\)\s*)$"
    r"|\s*return\s+\S+$"
    r"|.*(?:[=!]=|&&|\|\||[-=]>|\w\(\w*\)\.|\+=| = )"
)
_HAS_WORD = re.compile(r"[^\W_]")
_CONTINUES = re.compile(
    r"[\s\"'(]*(?:(?:please|pls|ok(?:ay)?|yes|sure|and|now|bitte|por favor"
    r"|s'il \w+ pla[iî]t)[\s,.!]+)*(?:"
    + _phrases(
        r"""
        continue|go (?:on|ahead)|carry on|keep going|proceed|more|next|again|try again|and then
        yes|yep|yeah|sure|ok(?:ay)?|do (?:it|so|that)|please do|why|how so|how come|really|so|and
        are you sure|elaborate|explain|shorter|longer|in (?:short|detail)|what else|anything else
        weiter|mach weiter|fortsetzen|ja|warum|continue[rz]?|poursui\w*|oui|pourquoi|suite
        contin[uú]a\w*|sigue|sí|más|por qué|continua|sì|ancora|perché|sim|mais
        продолж\w*|дальше|да|ещё|почему
        """
    )
    + r"|继续|繼續|接着|下\u4e00个|続けて\w*|続き|계속)"
    r"(?:[\s,]+(?:please|then|it|on|bitte))?[\s.!?\uff1f\u3002\uff01\"')\u2026]*",
    _FLAGS,
)
_REFERS = re.compile(
    r"[\s\"'(]*(?:(?:and|but|or|so|then|also|what about|how about|what if|same"
    r"|und|aber|oder|was ist mit"
    r"|et|mais|ou|y|pero|e|ma|\u0430|\u0438|\u043d\u043e)\b|那|还有|還有|それ|では|그럼|그리고)",
    _FLAGS,
)
_REFERS_MOST = 120
_POINTS_ON = re.compile(
    r"[:\uff1a]\s*$|\b(?:following|below|next|folgende\w*|unten|suivante?s?|ci-dessous|siguientes?"
    r"|seguent[ei]|seguintes?)\b|下面|以下|下列|下文|次の|다음",
    _FLAGS,
)


def kind_of(text: str, *, is_block: bool = False) -> AskingKind:
    """What a paragraph of some hundred characters is.

    Parameters
    ----------
    is_block : it is code or JSON.
    """
    if is_block:
        return AskingKind.TRAILS
    text = _SWITCH.sub(" ", text).strip()
    if not _HAS_WORD.search(text):
        return AskingKind.ASKS if _MARK.search(text) else AskingKind.TRAILS
    lines = text.splitlines()
    if all(line.lstrip().startswith(">") for line in lines):
        return AskingKind.SAYS  # quoted from somebody else
    if 2 * sum(_CODE.match(line) is not None for line in lines) > len(lines):
        return AskingKind.SAYS
    head = _HEAD.match(text)
    if head is not None:
        return AskingKind.ASKS if _HAS_WORD.search(text, head.end()) else AskingKind.HEADS
    if _ANSWER_HEAD.match(text):
        return AskingKind.TRAILS
    if _COURTESY.match(text) and len(text) <= _SHORT and not _asks_more(text):
        return AskingKind.TRAILS
    if _MARK.search(text) or _OPENS.search(text):
        return AskingKind.ASKS
    if any(marks_question(line, named=True) for line in lines):
        return AskingKind.ASKS
    kinds = [_kind_of_sentence(sentence, len(text)) for sentence in sentences_of(text)]
    for kind in (AskingKind.REQUESTS, AskingKind.TRAILS):
        if kind in kinds and (kind is AskingKind.REQUESTS or len(text) <= 2 * _SHORT):
            return kind
    return AskingKind.SAYS


def _asks_more(text: str) -> bool:
    """Whether after words of courtesy a sentence goes on to ask, or is asked with."""
    sentences = sentences_of(text)
    rest = [sentence for sentence in sentences if not _COURTESY.match(sentence)]
    if any(_MARK.search(sentence) for sentence in rest):
        return True
    if any(_kind_of_sentence(sentence, len(text)) is AskingKind.REQUESTS for sentence in rest):
        return True
    named = re.match(r"(?:[^,\n?]{0,40},\s*)(.*[?\uff1f])", text, re.DOTALL)  # "Hi, what is ...?"
    generic = re.search(r"\bhelp\b|\bquestions?\b", text, _FLAGS)
    return bool(named and not generic)


def _kind_of_sentence(sentence: str, n_around: int) -> AskingKind:
    """What a sentence without a question mark is; of a text of ``n_around`` characters."""
    is_short = n_around <= _SHORT
    if _EAST_ASIAN_FORMAT.search(sentence):
        return AskingKind.REQUESTS if _EAST_ASIAN_VERB.search(sentence) else AskingKind.TRAILS
    if _FORMAT.match(sentence):
        return AskingKind.TRAILS
    if _REQUEST.match(sentence):
        return AskingKind.REQUESTS
    if n_around <= _VERB_FIRST_MOST and _VERB_FIRST.match(sentence):
        return AskingKind.REQUESTS
    if is_short and (_EAST_ASIAN.search(sentence) or _asks_without_mark(sentence)):
        return AskingKind.REQUESTS
    return AskingKind.SAYS


def _asks_without_mark(sentence: str) -> bool:
    return bool(_INTERROGATIVE.match(sentence)) and not sentence.rstrip().endswith((".", "!", ","))


def marks_question(text: str, *, named: bool = False) -> bool:
    """Whether a paragraph has a question mark or, or only (``named``), is called a question."""
    if (head := _HEAD.match(text)) is not None and _HAS_WORD.search(text, head.end()):
        return True
    return not named and bool(_MARK.search(text)) and not text.startswith(">")


def answers(text: str) -> bool:
    """Whether a paragraph is the answer to a question before it: "A: ..."."""
    return bool(_ANSWERS.match(text))


def points_on(text: str) -> bool:
    """Whether a request is about what follows: "Summarise the following", "Translate:"."""
    return bool(_POINTS_ON.search(text))


def continues(text: str) -> bool:
    """Whether a text says nothing but to go on with what was asked before, or thanks for it."""
    text = _SWITCH.sub(" ", text).strip()
    return bool(_CONTINUES.fullmatch(text)) or kind_of(text) is AskingKind.TRAILS


def refers_back(text: str) -> bool:
    """Whether a short text is a question only with one that was asked before: "And in 1850?"."""
    text = _SWITCH.sub(" ", text).strip()
    return len(text) <= _REFERS_MOST and bool(_REFERS.match(text))
