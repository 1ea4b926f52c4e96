/* The library of other_user.c. */
void loop_in_library(long turns)
{
    for (volatile long i = 0; i < turns; i++)
        ;
}
