"""Word lists the curriculum draws from, and made-up names beyond them."""

import random

FIRST_NAMES = tuple(
    """
    Anna Ben Carla David Elena Felix Greta Hugo Ines Jonas Karin Leo Maria Nils Olga Peter Quentin
    Rosa Simon Tara Ursula Victor Wendy Xaver Yara Zoe Alice Bob Charlie Diana Erik Fatima George
    Hannah Ivan Julia Kevin Laura Marco Nina Oscar Paula Rafael Sofia Thomas Uma Vera William Yusuf
    Zara Adam Bella Chris Daniel Emma Frank Grace Henry Iris Jack Kate Liam Mia Noah Olivia Paul
    Rachel Sam Tom Lucy Max Ali Amir Chen Dev Hiro Jin Kofi Lena Mei Omar Priya Ravi Sana Tariq Wei
    Yuki James John Robert Michael Mary Linda Sarah Karen Lisa Nancy Mark Steven Andrew Joshua
    Brian Edward Jason Ryan Jacob Eric Stephen Jonathan Larry Justin Scott Brandon Samuel Gregory
    Alexander Patrick Dennis Jerry Tyler Aaron Jose Emily Donna Michelle Amanda Melissa Deborah
    Stephanie Rebecca Sharon Cynthia Kathleen Amy Angela Anja
    """.split()
)
CITIES = tuple(
    """
    Paris London Berlin Madrid Rome Vienna Prague Lisbon Dublin Oslo Stockholm Helsinki Warsaw
    Budapest Athens Zurich Geneva Hamburg Munich Cologne Lyon Milan Naples Turin Porto Seville
    Valencia Bergen Tokyo Osaka Kyoto Seoul Beijing Shanghai Delhi Mumbai Bangkok Hanoi Manila
    Jakarta Sydney Melbourne Auckland Toronto Montreal Vancouver Boston Chicago Denver Seattle
    Dallas Houston Austin Miami Atlanta Lima Bogota Santiago Quito Cairo Nairobi Lagos Accra Tunis
    Dakar Istanbul Ankara Dubai Riga Tallinn Vilnius Krakow Gdansk Leipzig Dresden Bremen Graz
    Salzburg Basel Bern Ghent Bruges Utrecht Leiden
    """.split()
)
COLOURS = tuple(
    """
    red blue green yellow orange purple pink brown black white grey silver gold turquoise violet
    crimson indigo beige teal olive maroon ivory scarlet navy lilac amber coral mint lime copper
    bronze emerald
    """.split()
)
SHADES = ("light", "dark", "pale", "bright", "deep", "soft", "dusty", "warm")
FOODS = tuple(
    """
    pizza pasta soup rice bread cheese salad curry noodles pancakes chocolate apples cherries mango
    grapes potatoes tomatoes mushrooms olives lentils beans waffles dumplings sushi tacos stew
    honey yoghurt strawberries pears plums peaches walnuts almonds carrots spinach pumpkin lasagne
    risotto ramen
    """.split()
)
HOBBIES = tuple(
    """
    chess climbing painting sailing cycling swimming running dancing singing knitting gardening
    fishing hiking reading cooking baking skiing rowing archery pottery photography astronomy
    juggling surfing fencing origami woodwork judo yoga poetry
    """.split()
)
JOBS = tuple(
    """
    teacher nurse baker pilot doctor lawyer farmer painter carpenter engineer chemist musician
    writer plumber gardener librarian driver cook tailor sailor architect dentist astronomer
    beekeeper printer electrician translator potter surgeon actor
    """.split()
)
ANIMALS = tuple(
    """
    dog cat rabbit horse parrot hamster turtle goat pony fish snake lizard owl duck goose sheep cow
    donkey fox wolf bear otter badger falcon heron raven sparrow tiger lion panda koala camel zebra
    whale dolphin
    """.split()
)
OBJECTS = tuple(
    """
    boat car bike house garden robot ship piano guitar violin drum kite lamp clock table chair
    mirror basket bottle bridge tower castle window door key coin ring rope ladder hammer needle
    candle lantern barrel wagon anchor compass telescope camera radio printer laptop phone server
    backpack suitcase jacket hat scarf glove boot blanket pillow carpet painting statue vase kettle
    spoon plate bowl cup oven stove tent map book letter ticket poster stone feather shell leaf
    branch tree flower rose tulip cactus river lake island mountain valley forest meadow desert
    harbour village station library museum school factory market theatre bakery garage cellar attic
    kitchen balcony workshop office tractor train plane rocket
    """.split()
)
ADJECTIVES = tuple(
    """
    small big old new quiet loud quick slow happy brave clever gentle proud shy strong round square
    narrow wide tall short heavy empty full broken hidden golden wooden iron paper glass frozen
    sunny rainy windy cold hot dry wet sharp smooth rough clean dirty secret famous strange simple
    lucky hungry sleepy silent ancient modern tiny giant purple northern southern eastern western
    early late
    """.split()
)
VERBS = tuple(
    """
    found sold bought painted fixed carried cleaned watched opened closed lifted moved borrowed hid
    drew built washed measured counted described visited passed followed remembered noticed
    photographed
    """.split()
)
COMMON = tuple(
    """
    time year people way day man woman thing life child world hand part place week case point
    number group problem fact friend father mother brother sister family story music water money
    morning evening night question answer idea word line head side end name home room area company
    system program work night question month lot right study job book eye business issue power
    country law car city community president team minute body information back parent face others
    level health person art war history party result change reason research girl guy moment air
    teacher force education foot boy age policy process game love sense death experience heart
    paper space ground form event weather summer winter spring autumn today tomorrow yesterday
    always never often sometimes again already still almost enough because before after between
    through during without against under over about around across behind should would could might
    must shall will can may does did done have has had been being were was are good great little
    own other long right high different large next important public bad same able really very well
    only just even also however perhaps maybe please thanks thank sorry hello hi hey bye goodbye
    welcome sure okay yes no not what which who whom whose when where why how many much know think
    take see come want look use find give tell work call try ask need feel become leave put mean
    keep let begin seem help talk turn start show hear play run move like live believe hold bring
    happen write provide sit stand lose pay meet include continue set learn lead understand watch
    follow stop create speak read allow add spend grow open walk win offer remember consider appear
    buy wait serve die send expect build stay fall cut reach kill remain suggest raise pass sell
    require report decide pull first second third last every each both few more most some such than
    then these those government states united congress nation peace freedom nature science language
    computer memory model sentence example letter order list text file code data function value key
    error server request
    """.split()
)
FIELDS = tuple(
    """
    name title city country street colour size weight height width length depth speed price amount
    count quantity limit page date day month year hour minutes seconds time duration distance
    language currency unit level mode format status priority category kind type brand model owner
    author sender receiver subject body text query path code key number id label note reason
    address phone email rating score volume brightness temperature humidity pressure latitude
    longitude zone room floor seat row column guests nights rooms adults children tags items names
    topics members colours files steps options urgent public private active verbose silent hidden
    """.split()
)
MONTHS = tuple(
    "January February March April May June July August September October November December".split()
)
WEEKDAYS = tuple("Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split())

_ONSETS = tuple("b c d f g h j k l m n p r s t v w z br dr fl gr kl kr pl sh st th tr ch".split())
_VOWELS = tuple("a e i o u a e i o ai ee ia o u ou".split())
_CODAS = tuple("_ _ _ _ n r l s m k t x nd rn lt th sk".replace("_", "-").split())


def invented_name(random_source: random.Random) -> str:
    """A pronounceable capitalised name of two or three syllables, e.g. `Brimora`."""
    syllables = []
    for index in range(random_source.choice((2, 2, 2, 3))):
        onset = random_source.choice(_ONSETS) if index or random_source.random() < 0.85 else ""
        syllables.append(onset + random_source.choice(_VOWELS))
    name = "".join(syllables) + random_source.choice(_CODAS).strip("-")
    return name.capitalize()


def invented_word(random_source: random.Random) -> str:
    """A lower-case invented word, for passwords and code words."""
    return invented_name(random_source).lower()


def similar_name(random_source: random.Random, name: str) -> str:
    """Another name that begins alike, e.g. `Brimona` for `Brimora`."""
    kept = name[: max(2, len(name) - random_source.choice((1, 2, 3)))]
    return kept + random_source.choice(_ONSETS) + random_source.choice(_VOWELS)
