pragma circom 2.0.0;

// The prover knows two factors of n, both above 1. hi and lo are the halves of the digest that the proof is bound to.
template Bind() {
    signal input hi;
    signal input lo;
    signal input n;
    signal input a;
    signal input b;
    signal inverse_a;
    signal inverse_b;
    signal hi_squared;
    signal lo_squared;
    a * b === n;
    inverse_a <-- 1 / (a - 1);
    inverse_a * (a - 1) === 1;
    inverse_b <-- 1 / (b - 1);
    inverse_b * (b - 1) === 1;
    hi_squared <== hi * hi;
    lo_squared <== lo * lo;
}

component main {public [hi, lo, n]} = Bind();
