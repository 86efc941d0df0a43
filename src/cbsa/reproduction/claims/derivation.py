"""Section 3 and appendix B: the operator as a gradient step, and the attentions that it contains."""

from cbsa.reproduction.claim import PARTLY, Claim, Finding, not_here, proven
from cbsa.reproduction.evidence import Evidence

THEOREMS = "tests/test_theorems.py"
PYTEST = f"pytest {THEOREMS}"
_FLOAT64 = "float64, random shapes, ranks and ε"


def channel_attention(found: Evidence) -> Finding:
    """The equation holds; that it is TSSA holds up to what TSSA has besides."""
    name = "test_fixed_axes_as_representatives_give_channel_cbsa"
    found.test(THEOREMS, name)
    return Finding(
        PARTLY,
        f"{_FLOAT64}: eq. variant-3 is variant-2 with L_k = I (`{name}`)",
        "TSSA, as ToST publishes it, also weighs each token by its membership in a subspace, a softmax "
        "over heads, which variant-3 has not: the paper's «basically» is needed.",
    )


CLAIMS = (
    Claim(
        "gradient-step",
        "section 3.2, eq. update-Z, CBSA-ori",
        "p/(m ε²) · CBSA is the gradient of the compression term R_c(Q | U) of the representatives with "
        "respect to the tokens: the layer is a gradient step.",
        (PYTEST,),
        proven(
            THEOREMS,
            (
                "test_cbsa_is_the_gradient_of_the_compression_of_representatives",
                "test_the_operator_as_it_runs_is_that_gradient",
                "test_tied_exact_cbsa_with_stop_gradient_descends_the_objective",
            ),
            f"{_FLOAT64}: equal to autograd's gradient of the coding rate",
            "For the exact contraction, with tied bases and A held fixed. What the paper trains has a "
            "softmax, free output projections and no stop-gradient.",
        ),
    ),
    Claim(
        "softmax-attention",
        "section 3.3, eq. MSSA",
        "With the tokens as their own representatives (Q = Z, A = I) CBSA is MSSA.",
        (PYTEST,),
        proven(
            THEOREMS,
            (
                "test_tokens_as_their_own_representatives_give_exact_mssa",
                "test_tokens_as_their_own_representatives_give_mssa",
            ),
            f"{_FLOAT64}: equal, for the exact and for the softmax contraction",
        ),
    ),
    Claim(
        "linear-attention",
        "section 3.3, eq. variant-2; appendix B",
        "With the principal directions as representatives CBSA is Σ U_k F((U_kᵀZ)(U_kᵀZ)ᵀ) U_kᵀZ, which "
        "resembles linear attention.",
        (PYTEST,),
        proven(
            THEOREMS,
            ("test_principal_directions_as_representatives_give_linear_cbsa",),
            f"{_FLOAT64}: equal to the SVD written out",
        ),
    ),
    Claim(
        "orthogonal-representatives",
        "appendix B",
        "A similar result holds for any set of orthogonal representatives: rotated and scaled principal "
        "directions.",
        (PYTEST,),
        proven(
            THEOREMS,
            ("test_rotated_and_scaled_orthogonal_representatives",),
            f"{_FLOAT64}: equal to the closed form of the appendix",
        ),
    ),
    Claim(
        "channel-attention",
        "section 3.3, eq. variant-3",
        "With fixed axes as representatives CBSA scales channels by their second moments, «which basically "
        "recovers TSSA».",
        (PYTEST,),
        channel_attention,
    ),
    Claim(
        "agent-attention",
        "section 3.3",
        "Agent Attention is CBSA with the contraction step removed.",
        (PYTEST,),
        proven(
            THEOREMS,
            ("test_agent_attention_is_cbsa_without_contraction",),
            f"{_FLOAT64}: the layer without contraction is attention to and from pooled tokens",
            "With query, key and value identical, as the paper says; Agent Attention as published has a "
            "softmax of its own for the way back.",
        ),
    ),
    Claim(
        "listing",
        "appendix D, algorithm",
        "The listing implements eq. CBSA.",
        ("pytest tests/layers/test_cbsa.py",),
        proven(
            "tests/layers/test_cbsa.py",
            ("test_is_the_papers_listing",),
            "our layer is the listing to the last digits of float64",
            "Two things differ from the equations: the listing pools all tokens but the last, so that CLS "
            "counts as a patch and the raster is shifted by one (`legacy_pool=True` does the same), and it "
            "has no stop-gradient.",
        ),
    ),
    Claim(
        "drawings",
        "figures CBT and related_attn",
        "Drawings of the operator, of its relatives, and of how each of them compresses.",
        (),
        not_here(
            "Nothing is measured in them. `cbsa reproduce fig-overview` and `cbsa explain` draw the same "
            "steps for a trained model."
        ),
    ),
)
