/* Inlined functions of a header, one within another. */
#ifndef FIELD_H
#define FIELD_H

float weight(float x)
{
	return x * x + 0.5f;
}

float blend(float a, float b)
{
	float w = weight(a);
	return w * b +
	       (1.0f - w) * a;
}

float gather(global const float *in, int i, int n)
{
	float sum = 0.0f;
	for (int k = 0; k < 4; k++)
		sum += blend(in[(i + k) % n], in[i]);
	return sum;
}

#endif
