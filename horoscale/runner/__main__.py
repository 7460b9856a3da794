"""`python -m horoscale.runner …` is `horoscalerun …`."""

import sys

from horoscale.runner.launch import main

sys.exit(main())
