"""python -m horoscale.kubernetes."""

import sys

from horoscale.kubernetes.command import main

sys.exit(main(sys.argv[1:]))
