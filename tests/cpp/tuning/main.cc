// Prints the table of docs/tuning.md.

#include <cstdio>

#include "tuning/table.h"

int main() {
  std::fputs(horoscale::tuning::Format(horoscale::tuning::MakeRows(0.1)).c_str(), stdout);
  return 0;
}
