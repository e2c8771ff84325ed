"""What is hidden in haystacks, and what is asked about it; written for this."""

from __future__ import annotations

from typing import NamedTuple

# City and country: a key, and what only knowledge ties to it.
CAPITALS = (
    ("Paris", "France"),
    ("Rome", "Italy"),
    ("Madrid", "Spain"),
    ("Berlin", "Germany"),
    ("Vienna", "Austria"),
    ("Athens", "Greece"),
    ("Lisbon", "Portugal"),
    ("Dublin", "Ireland"),
    ("Oslo", "Norway"),
    ("Stockholm", "Sweden"),
    ("Helsinki", "Finland"),
    ("Copenhagen", "Denmark"),
    ("Warsaw", "Poland"),
    ("Budapest", "Hungary"),
    ("Cairo", "Egypt"),
    ("Tokyo", "Japan"),
)

NEEDLE = "The special magic number for {city} is {number}."
ANSWER = "The special magic number for {city} mentioned in the text is"
MANY_ANSWER = "The special magic numbers for {city} mentioned in the text are"

KEYED = (
    "What is the special magic number for {city} mentioned in the text above?",
    "Which special magic number does the text give for {city}?",
    "Tell me the special magic number for {city} in the text.",
)
REWORDED = (
    "Which secret code did the author give for {city}?",
    "Which digits belong to {city} according to the author?",
    "What value was assigned to {city}?",
)
PARAPHRASE = (
    "What is the special magic number for the capital of {country}?",
    "Which special magic number does the text give for the capital of {country}?",
    "Tell me the magic number of the capital city of {country}.",
)
MANY_VALUES = "What are all the special magic numbers for {city} mentioned in the text above?"

VARIABLE = "VAR {name} = {value}."
VARIABLES_QUESTION = (
    "Find all variables that are assigned the value {value} in the text above, directly or by "
    "another variable."
)
VARIABLES_ANSWER = "The variables that are assigned the value {value} are"

COMMON_QUESTION = "What are the {n} most common words in the list above?"
COMMON_ANSWER = "The {n} most common words in the list are"
COMMON_WORDS = (
    *("anchor", "basket", "candle", "dragon", "engine", "feather", "garden", "hammer", "island"),
    *("jacket", "kettle", "ladder", "magnet", "needle", "orange", "pencil", "quarry", "ribbon"),
    *("saddle", "tunnel", "urchin", "velvet", "walnut", "yellow", "zipper", "acorn", "bottle"),
    *("carpet", "dagger", "elbow", "falcon", "guitar", "helmet", "insect", "jungle", "kitten"),
    *("lemon", "mirror", "napkin", "oyster", "pepper", "rabbit", "shovel", "ticket", "violin"),
    *("window", "bridge", "copper", "desert", "fabric", "glove", "harbor", "jewel", "lantern"),
)


class Fact(NamedTuple):
    """A sentence, a question, and a word of the answer."""

    sentence: str
    question: str
    answer: str


# No question shares a word of content with its sentence.
FACTS = tuple(
    Fact(*fact)
    for fact in (
        (
            "The violinist spilled her soup on the conductor's trousers.",
            "What did the musician make a mess with?",
            "soup",
        ),
        (
            "Grandfather keeps his spare key under the blue flowerpot.",
            "Where has the old man hidden what opens his door?",
            "flowerpot",
        ),
        (
            "The ferry was late because a whale slept across the channel.",
            "Which animal delayed the boat?",
            "whale",
        ),
        (
            "Nadia painted her bicycle bright orange last spring.",
            "What colour did the young woman give her two-wheeler?",
            "orange",
        ),
        (
            "The baker burned forty loaves while he was reading a novel.",
            "What distracted the man who ruined the bread?",
            "novel",
        ),
        (
            "Our neighbour's parrot can whistle the national anthem.",
            "What does the bird next door perform?",
            "anthem",
        ),
        (
            "A hailstorm broke every window of the greenhouse.",
            "What kind of weather smashed the glass building?",
            "hail",
        ),
        (
            "The surgeon forgot her umbrella on the night train to Lisbon.",
            "What item did the doctor leave behind while travelling?",
            "umbrella",
        ),
        (
            "The mayor resigned after he had lost a chess match.",
            "Which game made the head of the town give up his office?",
            "chess",
        ),
        (
            "Their wedding took place on a frozen lake.",
            "Where did the couple get married?",
            "lake",
        ),
        (
            "The smugglers hid the diamonds inside a cello.",
            "In which instrument were the jewels concealed?",
            "cello",
        ),
        (
            "Rosa's kitten is afraid of balloons.",
            "What frightens the little cat?",
            "balloon",
        ),
        (
            "The astronomer named the comet after his tailor.",
            "Which tradesman inspired what the star-gazer called his discovery?",
            "tailor",
        ),
        (
            "A carpenter from Oslo built the footbridge in nine days.",
            "From which town came the man who made the crossing?",
            "Oslo",
        ),
        (
            "The museum is closed on Thursdays because the guard sings in a choir.",
            "On which weekday can visitors not see the exhibition?",
            "Thursday",
        ),
        (
            "The twins inherited a lighthouse from their aunt.",
            "What building did the two siblings receive when their relative died?",
            "lighthouse",
        ),
        (
            "Snow fell in the desert town on the eve of the election.",
            "What came down from the sky before people voted?",
            "snow",
        ),
        (
            "The goalkeeper broke his thumb while opening a jar of pickles.",
            "Which body part did the football player injure?",
            "thumb",
        ),
        (
            "The librarian drinks nothing but cold peppermint tea.",
            "What is the favourite beverage of the woman who looks after the books?",
            "peppermint",
        ),
        (
            "A thunderbolt split the oak beside the school.",
            "What tree was destroyed near the place where children learn?",
            "oak",
        ),
        (
            "The pilot carried a jar of honey to her sister in Nairobi.",
            "What sweet gift did the aviator bring to her sibling?",
            "honey",
        ),
        (
            "The tenor lost his voice and was replaced by a dentist.",
            "Who took over for the ill singer?",
            "dentist",
        ),
        (
            "The potter pays her rent in teacups.",
            "With what does the craftswoman compensate her landlord?",
            "teacup",
        ),
        (
            "A stork nests on the chimney of the post office.",
            "Which creature lives above the place where letters are sent?",
            "stork",
        ),
    )
)

# Of the bundled text: a passage that stands there once and inside a sentence, a question in other
# words, and a name or a word of the answer.
VERSES = tuple(
    Fact(*fact)
    for fact in (
        (
            "but the name of that city was called Luz at the first",
            "What was Bethel called before it got that name?",
            "Luz",
        ),
        (
            "The name of the first is Pison: that is it which compasseth the whole land of Havilah",
            "Which river flows around the land of Havilah?",
            "Pison",
        ),
        (
            "upon the mountains of Ararat",
            "On which mountains did Noah's ark come to rest?",
            "Ararat",
        ),
        (
            "is the name of it called Babel; because the LORD did there confound the language",
            "What was the city called where people could no longer understand each other?",
            "Babel",
        ),
        (
            "And Noah began to be an husbandman, and he planted a vineyard",
            "What did Noah plant when he became a farmer?",
            "vineyard",
        ),
        (
            "behold behind him a ram caught in a thicket by his horns",
            "Which animal did Abraham find to sacrifice instead of his son?",
            "ram",
        ),
        (
            "And Rebekah had a brother, and his name was Laban",
            "Who was Rebekah's brother?",
            "Laban",
        ),
        (
            "Then Jacob gave Esau bread and pottage of lentiles",
            "What did Esau get to eat for his birthright?",
            "pottage",
        ),
        (
            "behold a ladder set up on the earth, and the top of it reached to heaven",
            "What did Jacob see in his dream that led up to the sky?",
            "ladder",
        ),
        (
            "But Deborah Rebekah's nurse died",
            "Who was the nurse of Rebekah?",
            "Deborah",
        ),
        (
            "that she called his name Benoni: but his father called him Benjamin",
            "What did Rachel call Benjamin when she was dying?",
            "Benoni",
        ),
        (
            "and killed a kid of the goats, and dipped the coat in the blood",
            "Which animal was killed to put blood on Joseph's clothes?",
            "goat",
        ),
        (
            "And Pharaoh called Joseph's name Zaphnathpaaneah",
            "What new name did Joseph get from Pharaoh?",
            "Zaphnathpaaneah",
        ),
        (
            "And Joseph called the name of the firstborn Manasseh",
            "What was Joseph's eldest son called?",
            "Manasseh",
        ),
        (
            "And put my cup, the silver cup, in the sack's mouth of the youngest",
            "What was hidden in the bag of the youngest brother?",
            "cup",
        ),
        (
            "she took for him an ark of bulrushes, and daubed it with slime and with pitch",
            "Of which plants was the little boat made for the baby?",
            "bulrush",
        ),
        (
            "and he gave Moses Zipporah his daughter",
            "Whom did Moses marry?",
            "Zipporah",
        ),
        (
            "And she bare him a son, and he called his name Gershom",
            "What did Moses call his son?",
            "Gershom",
        ),
        (
            "took him Jochebed his father's sister to wife; and she bare him Aaron and Moses",
            "Who was the mother of Aaron and Moses?",
            "Jochebed",
        ),
        (
            "And Miriam the prophetess, the sister of Aaron, took a timbrel in her hand",
            "Which instrument did Aaron's sister play?",
            "timbrel",
        ),
        (
            "Elim, where were twelve wells of water, and threescore and ten palm trees",
            "At which place were there many palms and a dozen wells?",
            "Elim",
        ),
        (
            "And Moses built an altar, and called the name of it Jehovahnissi",
            "What name did Moses give to his altar?",
            "Jehovahnissi",
        ),
        (
            "And ye shall take a bunch of hyssop, and dip it in the blood",
            "Which plant was used to put the blood on the doors?",
            "hyssop",
        ),
        (
            "Therefore the name of the city was called Zoar",
            "Which little city did Lot flee to?",
            "Zoar",
        ),
        (
            "But his wife looked back from behind him, and she became a pillar of salt",
            "What happened to Lot's wife when she turned around?",
            "salt",
        ),
        (
            "and the steward of my house is this Eliezer of Damascus",
            "From which town came Abram's servant Eliezer?",
            "Damascus",
        ),
        (
            "And Melchizedek king of Salem brought forth bread and wine",
            "Which king offered bread and wine?",
            "Melchizedek",
        ),
        (
            "and, lo, in her mouth was an olive leaf pluckt off",
            "What did the dove bring back to Noah?",
            "olive",
        ),
        (
            "Make thee an ark of gopher wood",
            "Of what kind of wood was the ark to be built?",
            "gopher",
        ),
        (
            "of which the name of the one was Shiphrah, and the name of the other Puah",
            "What were the two Hebrew midwives called?",
            "Shiphrah",
        ),
    )
)
