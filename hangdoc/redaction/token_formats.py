"""Token formats of known services: patterns, each with a literal that every match contains, searched first for speed.

Source: each service's documentation of its token format. Minimum lengths are short, because py-spy cuts long strings.
Literals are lower case and searched in lower-cased text. Patterns are case-sensitive unless marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

_SHAPES: tuple[tuple[str, str], ...] = (
    # --- key files ------------------------------------------------------------
    ("-----begin", r"-----BEGIN [\s\S]*?(?:-----END [^\n-]*-----|\Z)"),
    ("---- begin", r"---- BEGIN [\s\S]*?(?:---- END [^\n-]*----|\Z)"),
    ("putty-user-key-file", r"PuTTY-User-Key-File[\s\S]*"),
    ("age-secret-key-", r"AGE-SECRET-KEY-[0-9A-Z]{8,}"),
    ("age-plugin-", r"AGE-PLUGIN-[0-9A-Z-]{16,}"),
    # --- clouds ---------------------------------------------------------------
    ("", r"\b(?:A3T[A-Z0-9]|A(?:KIA|SIA|BIA|CCA|GPA|IDA|IPA|NPA|NVA|ROA))[0-9A-Z]{12,}"),  # AWS key ids
    ("absk", r"\bABSK[A-Za-z0-9+/=]{20,}"),  # AWS Bedrock
    ("aiza", r"\bAIza[\w-]{20,}"),  # Google
    ("ya29.", r"\bya29\.[\w.-]{10,}"),
    ("gocspx-", r"\bGOCSPX-[\w-]{10,}"),
    ("1//0", r"\b1//0[\w-]{20,}"),
    ("8q~", r"\b\w{3}8Q~[\w.~-]{16,}"),  # Microsoft Entra
    ("7q~", r"\b\w{3}7Q~[\w.~-]{16,}"),
    ("do", r"\bdo[opr]_v1_[0-9a-f]{8,}"),  # DigitalOcean
    ("ltai", r"\bLTAI[A-Za-z0-9]{12,}"),  # Alibaba
    ("akid", r"\bAKID[A-Za-z0-9]{13,}"),  # Tencent
    ("hrku-", r"\bHRKU-[\w-]{16,}"),  # Heroku
    ("flyv1", r"\bFlyV1\s+[\w,+/=-]{16,}"),
    ("fm", r"\bfm[12]r?_[A-Za-z0-9+/=_-]{16,}"),
    ("nfp_", r"\bnfp_\w{16,}"),  # Netlify
    ("v1.0-", r"\bv1\.0-[0-9a-f]{16,}-[0-9a-f]{16,}"),  # Cloudflare origin CA
    ("rnd_", r"\brnd_[A-Za-z0-9]{20,}"),  # Render
    ("yc", r"\b(?:YC[\w-]{38}|y[0-3]_[\w-]{40,}|t1\.[\w-]{20,}={0,2}\.[\w-]{20,}={0,2})"),  # Yandex
    ("sha256~", r"\bsha256~[\w-]{16,}"),  # OpenShift
    # --- models and data ------------------------------------------------------
    ("hf_", r"\bhf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|[a-z]{16,})"),  # not a file name: `hf_transformers_lm.py`
    ("api_org_", r"\bapi_org_\w{8,}"),
    (
        "sk-",
        r"\bsk-(?:(?:proj|ant|svcacct|admin|or|live|test|lf|None)-[\w-]{6,}|[A-Za-z0-9][\w-]{15,})",
    ),  # OpenAI, Anthropic
    ("gsk_", r"\bgsk_\w{16,}"),  # Groq
    ("xai-", r"\bxai-\w{16,}"),
    ("pplx-", r"\bpplx-\w{16,}"),
    ("r8_", r"\br8_\w{16,}"),  # Replicate
    ("pcsk_", r"\bpcsk_\w{16,}"),  # Pinecone
    ("lsv2_", r"\blsv2_\w{16,}"),  # LangSmith
    ("nvapi-", r"\bnvapi-[\w-]{16,}"),
    ("kgat_", r"\bKGAT_\w{16,}"),  # Kaggle
    ("wandb_v1_", r"\bwandb_v1_\w{16,}"),
    ("rpa_", r"\brpa_[A-Z0-9]{16,}"),  # RunPod
    ("jina_", r"\bjina_\w{16,}"),
    ("tvly-", r"\btvly-[\w-]{16,}"),
    ("fw_", r"\bfw_[A-Za-z0-9]{16,}"),  # Fireworks
    ("tgp_v1_", r"\btgp_v1_[\w-]{16,}"),  # Together
    ("csk-", r"\bcsk-[a-z0-9]{16,}"),  # Cerebras
    ("ash_", r"\b(?:ash|aph0)_[A-Za-z0-9]{16,}"),  # Anyscale
    ("aph0_", r"\baph0_[\w-]{16,}"),
    ("dapi", r"\bdapi[0-9a-f]{16,}(?:-\d+)?"),  # Databricks
    ("dose", r"\bdose[0-9a-f]{32}"),
    ("dbt", r"\bdbt[cus]_[\w-]{16,}"),
    ("pnu_", r"\bpnu_\w{16,}"),  # Prefect
    ("pnb_", r"\bpnb_\w{16,}"),
    # --- code and packages ----------------------------------------------------
    ("gh", r"\bgh[pousr]_\w{8,}"),
    ("github_pat_", r"\bgithub_pat_\w{8,}"),
    ("v1.", r"\bv1\.[0-9a-f]{40}\b"),  # GitHub refresh
    ("gl", r"\bgl(?:pat|dt|rt|rtr|cbt|ptt|ft|soat|imt|agent|oas|ffct|wt)-[\w.-]{8,}"),
    ("gr1348941", r"\bGR1348941[\w-]{8,}"),
    ("atbb", r"\bATBB\w{16,}"),  # Bitbucket
    ("atctt3", r"\bATCTT3[\w=-]{16,}"),
    ("atatt3", r"\bATATT3[\w=-]{16,}"),  # Atlassian
    ("npm_", r"\bnpm_\w{16,}"),
    ("pypi-", r"\bpypi-[\w-]{16,}"),
    ("dckr_", r"\bdckr_[a-z]{3,5}_[\w-]{8,}"),
    ("rubygems_", r"\brubygems_[0-9a-f]{16,}"),
    ("oy2", r"\boy2[a-z0-9]{43}"),  # NuGet
    ("akc", r"\bAKC[A-Za-z0-9]{10,}"),  # JFrog
    ("cmvmdgtu", r"\bcmVmdGtu[A-Za-z0-9=]{16,}"),
    ("sgp_", r"\bsgp_\w{16,}"),  # Sourcegraph
    ("bk", r"\bbk(?:ua|pt|at|ct)_\w{16,}"),  # Buildkite
    ("ccipat_", r"\bCCIPAT_\w{16,}"),
    ("pmak-", r"\bPMAK-[0-9a-f-]{16,}"),  # Postman
    ("figd_", r"\bfigd_[\w-]{16,}"),
    ("lin_", r"\blin_(?:api|oauth|wh)_\w{16,}"),  # Linear
    ("secret_", r"\bsecret_[A-Za-z0-9]{32,}"),  # Notion
    ("ntn_", r"\bntn_\w{16,}"),
    ("pat", r"\bpat[A-Za-z0-9]{14}\.[0-9a-f]{16,}"),  # Airtable
    # --- payment and mail -------------------------------------------------------
    ("_live_", r"\b(?:sk|rk|pk)_live_\w{8,}"),  # Stripe
    ("_test_", r"\b(?:sk|rk)_test_\w{8,}"),
    ("whsec_", r"\bwhsec_[\w+/=]{16,}"),
    ("shp", r"\bshp(?:at|ca|pa|ss|tka)_[0-9a-fA-F]{16,}"),  # Shopify
    ("sq0", r"\bsq0[a-z]{3}-[\w\\-]{16,}"),  # Square
    ("eaaa", r"\bEAAA[\w-]{24,}"),
    ("access_token$", r"\baccess_token\$(?:production|sandbox)\$[\w$]{16,}"),  # Braintree
    ("sg.", r"\bSG\.[\w-]{12,}\.[\w-]{8,}"),  # SendGrid
    ("key-", r"\bkey-[0-9a-z]{32}\b"),  # Mailgun
    ("", r"\b[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8}\b"),
    ("-us", r"\b[0-9a-z]{32}-us\d{1,2}\b"),  # Mailchimp
    ("xkeysib-", r"\bxkeysib-[\w-]{16,}"),  # Brevo
    ("re_", r"\bre_[A-Za-z0-9]{6,12}_[A-Za-z0-9]{16,}"),  # Resend
    ("", r"\b(?:SK|AC)[0-9a-z]{32}\b"),  # Twilio
    # --- chat -----------------------------------------------------------------
    ("xox", r"\b(?i:xox[a-z](?:\.xox[a-z])?-)[\w-]{3,}"),  # Slack
    ("xapp-", r"\bxapp-[\w-]{8,}"),
    ("hooks.slack", r"(?i)(?<=hooks\.slack\.com/)(?:services|workflows|triggers)/[\w/+-]+"),
    ("hooks.slack-gov", r"(?<=hooks\.slack-gov\.com/)(?:services|workflows|triggers)/[\w/+-]+"),
    ("/api/webhooks/", r"(?<=/api/webhooks/)\d+/[\w-]+"),  # Discord
    ("", r"\b[MNO][A-Za-z0-9_-]{22,27}\.[\w-]{6}\.[\w-]{20,}"),
    ("webhook", r"(?i)(?<=webhook\.office\.com/)[\w/@+.-]+|(?<=outlook\.office\.com/)webhook/[\w/@+.-]+"),  # Teams
    ("/hooks/", r"(?<=/hooks/)(?:catch/)?[A-Za-z0-9/_-]{16,}"),  # Mattermost, Rocket.Chat, Zapier
    ("hooks.zapier.com", r"(?<=hooks\.zapier\.com/)hooks/[\w/-]+"),
    ("maker.ifttt.com", r"(?<=/with/key/)[\w-]+"),
    ("open-apis/bot", r"(?<=/hook/)[\w-]{16,}"),  # Lark
    ("bot", r"(?<=/bot)\d{6,12}:[\w-]{16,}"),  # Telegram
    ("", r"\b\d{8,10}:(?:AA[\w-]{20,}|[\w-]{35}\b)"),
    ("/soap/v3", r"(?i)(?<=/soap/)v3(?:.1)?/[a-z0-9]{64}"),  # SoftLayer
    ("hc-ping.com", r"(?<=hc-ping\.com/)[\w/-]+"),
    ("/integration/", r"(?<=/integration/)[0-9a-z]{16,}"),  # PagerDuty
    # --- monitoring -------------------------------------------------------------
    ("nr", r"\bNR(?:AK|JS|II|IQ|RA|AA)-[\w-]{8,}"),  # New Relic
    ("nral", r"\b[0-9a-f]{36}NRAL\b"),
    ("sntry", r"\bsntry[us]_[\w+/=.-]{16,}"),
    ("ingest", r"(?i)(?<=://)[0-9a-f]{16,}(?=@[\w.-]*sentry|@[\w.-]*ingest)"),  # a DSN
    ("gl", r"\bgl(?:c|sa)_[\w+/=]{16,}"),  # Grafana
    ("dp.", r"\bdp\.(?:pt|st|ct|sa|scim|audit|said)\.[\w.-]{8,}"),  # Doppler
    ("ddp", r"\bdd[pw]_?[A-Za-z0-9]{36}\b"),  # Datadog
    # --- stores of secrets ----------------------------------------------------
    ("hv", r"\bhv[sbr]\.[\w-]{8,}"),  # Vault
    ("s.", r"(?<![\w.])s\.[A-Za-z0-9]{24}\b"),
    ("ops_ey", r"\bops_eyJ[\w+/=-]{16,}"),  # 1Password
    ("a3-", r"\bA3-[A-Z0-9]{6}-[A-Z0-9-]{20,}"),
    ("atlasv1", r"\b\w{8,20}\.atlasv1\.[\w-]{16,}"),  # Terraform
    ("pul-", r"\bpul-[0-9a-f]{16,}"),
    ("pscale_", r"\bpscale_[a-z]+_[\w.=-]{16,}"),
    ("sbp_", r"\bsbp_[0-9a-f]{16,}"),
    ("napi_", r"\bnapi_\w{16,}"),
    ("ccdb1_", r"\bCCDB1_\w{16,}"),
    ("tskey-", r"\btskey-[\w-]{8,}"),
    ("api-", r"\b(?:api|sdk|mob)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),  # LaunchDarkly
    ("sdk-", r"\bsdk-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"),
    ("aaaa", r"\bAAAA[\w%+-]{60,}"),  # X
    ("sl.", r"\bsl\.(?:u\.)?[\w-]{40,}"),  # Dropbox
    # --- common formats --------------------------------------------------
    ("eyj", r"\beyJ[\w+/=-]{8,}(?:\.[\w+/=-]*)*"),  # JWT, and any JSON in base64
    ("local.", r"\bv[1-4]\.(?:local|public)\.[\w-]{16,}"),  # PASETO
    ("public.", r"\bv[1-4]\.public\.[\w-]{16,}"),
    ("$", r"\$(?:1|2[abxy]|5|6|7|y|argon2(?:id?|d)|pbkdf2[\w-]*|scrypt)\$[\w./+=,$-]{16,}"),  # crypt(5)
)

# Start of a secret: not inside a word, but possibly after an escape such as "\\n" or "%3D" in a repr or URL.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{2}))"


def shapes_in(lowered: str) -> Iterator[re.Pattern[str]]:
    """The patterns that may match; `lowered` is the text in lower case."""
    for literal, expression in _SHAPES:
        if literal in lowered:
            yield _compiled(expression)


@cache
def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(_START + expression.removeprefix(r"\b") if expression.startswith(r"\b") else expression)
