"""What a calibration hides and asks; written for this, and other than what ``--niah`` asks.

A calibration that saw the facts which quality is measured by would praise itself.
"""

from __future__ import annotations

from ..needles.texts import CAPITALS

# A key, and another name for it that only knowledge gives.
PAIRS = (
    *((city, f"the capital of {country}") for city, country in CAPITALS),
    ("Moscow", "the capital of Russia"),
    ("Beijing", "the capital of China"),
    ("Ottawa", "the capital of Canada"),
    ("Brussels", "the capital of Belgium"),
    ("Prague", "the capital of the Czech Republic"),
    ("Lima", "the capital of Peru"),
    ("Nairobi", "the capital of Kenya"),
    ("Shakespeare", "the author of Hamlet"),
    ("Einstein", "the father of relativity"),
    ("Edison", "the inventor of the light bulb"),
    ("Columbus", "the explorer who reached America in 1492"),
    ("Mozart", "the composer of the Magic Flute"),
    ("Newton", "the discoverer of gravity"),
    ("Leonardo", "the painter of the Mona Lisa"),
    ("Darwin", "the father of the theory of evolution"),
    ("Gutenberg", "the inventor of the printing press"),
)

# A sentence about a key, a question in its words, and one in other words.
TEMPLATES = (
    (
        "The locker number of {key} is {number}.",
        "What is the locker number of {key}?",
        "Which storage box was given to {key}?",
    ),
    (
        "Parcels for {key} carry the code {number}.",
        "Which code do parcels for {key} carry?",
        "What is written on packages that go to {key}?",
    ),
    (
        "The register lists {key} under entry {number}.",
        "Under which entry does the register list {key}?",
        "Which line of the catalogue deals with {key}?",
    ),
    (
        "To ask about {key}, dial {number}.",
        "Which number does one dial to ask about {key}?",
        "Where can one phone for information on {key}?",
    ),
)

# How a question is put.
FRAMES = (
    "{question}",
    "According to the text above: {question}",
    "{question} Answer in a few words.",
    "Read the text and tell me: {question}",
)

# A sentence, and a question that shares no word of content with it.
FACTS = (
    ("The old sailor carved a flute from a tusk.", "What musical thing did the seaman make?"),
    ("The widow sold her piano to buy a rowing boat.", "How did the woman pay for the vessel?"),
    ("A fox stole three chickens from the vicar.", "Which animal took the clergyman's poultry?"),
    ("The schoolmaster sleeps in a hammock.", "What does the teacher lie on at night?"),
    ("Lightning struck the clock tower.", "What was hit during the thunderstorm?"),
    ("The chemist dropped her wedding ring into acid.", "What jewellery did the scientist lose?"),
    ("Uncle Walter left his boots in the swamp.", "What footwear got stuck in the mud?"),
    ("The train from Zurich brought two hundred penguins.", "What birds arrived by rail?"),
    ("The judge fell asleep during the trial.", "Who dozed off in court?"),
    ("Our landlord collects stamps.", "What is the hobby of the man who owns the flat?"),
    ("The cook put salt into the birthday cake.", "What wrong ingredient got into the dessert?"),
    ("Garlic hangs above the miller's bed.", "What keeps vampires from the man with the flour?"),
    ("The triplets were born aboard a submarine.", "On what ship did three babies see the light?"),
    ("The tulips were planted in the shape of an anchor.", "What figure did the flowers form?"),
    ("Professor Lindqvist proved the theorem in a bathtub.", "Where did the scholar find it out?"),
    ("The innkeeper waters his wine.", "How does the host cheat guests?"),
    ("The burglar took nothing but the cheese.", "What food did the thief steal?"),
    ("The bride arrived on a camel.", "Which beast carried the woman to her marriage?"),
    ("The village well has been dry since August.", "In which month did people run out of water?"),
    ("The shepherd reads poems to his flock.", "What do the sheep hear from their keeper?"),
    ("An avalanche buried the chapel.", "What destroyed the place of worship?"),
    ("The apprentice swallowed a needle.", "What sharp object did the trainee eat?"),
    ("The duchess is allergic to strawberries.", "Which fruit makes the noblewoman ill?"),
    ("A skeleton lay behind the coal.", "What remains did the miners come upon?"),
    ("The king's portrait was painted on a tablecloth.", "What did the artist of the monarch use?"),
    ("Captain Reyes steers by the smell of seaweed.", "Which sense guides the man at the helm?"),
    ("The pharmacist grows poison ivy.", "What plant does the woman who sells medicine raise?"),
    ("The orphan inherited a circus.", "What business was left to the child without parents?"),
    ("The postman is afraid of geese.", "What frightens the carrier of letters?"),
    ("Nobody applauded when the magician vanished.", "How did the audience react to the trick?"),
    ("The beekeeper hums to calm the swarm.", "How does the man soothe insects?"),
    ("The emperor banned the colour yellow.", "Which hue was forbidden by the ruler?"),
    ("A landslide blocked the road to the monastery.", "Why could no car get to the monks?"),
    ("The blacksmith lifts his anvil every morning.", "What does the craftsman do for exercise?"),
    ("A typewriter lay at the bottom of the lagoon.", "Which machine was found under water?"),
    ("Her nephew speaks eleven languages.", "How many tongues does the young relative master?"),
    ("The governor travels with his own pillow.", "What bedding accompanies the politician?"),
    ("The first prize went to a pumpkin.", "Which vegetable won the contest?"),
    ("The refugees crossed the river on a barn door.", "What served as a raft for those who fled?"),
    ("The plumber pulled an eel out of the pipe.", "Which fish clogged the drain?"),
    ("The ambassador arrived with a broken arm.", "What injury did the diplomat have?"),
    ("The choir rehearses in an empty swimming pool.", "Where do the singers practise?"),
    ("Moths darkened the stage.", "Which insects disturbed the theatre performance?"),
    ("The brewer feeds his horses with pancakes.", "What do the animals get that pull the beer?"),
    ("The colonel knits socks.", "What handicraft does the officer like?"),
    ("Flooding ruined the cellar of the bookshop.", "What damaged the basement of the store?"),
    ("The hermit pays visitors to leave.", "How does the recluse get rid of guests?"),
    ("The loaves are shaped like clocks.", "What does the bread resemble?"),
)
