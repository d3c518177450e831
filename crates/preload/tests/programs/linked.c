/* Allocates by symbols that it is linked with. */
#include "program.h"

int main(void) {
  begin();
  allocate_both();
  return end();
}
