"""The kind ``buckets``: gradients sent in at most so many messages, so that all have arrived soonest.

A toy, and a whole kind: PyTorch's DistributedDataParallel fills such buckets by their size alone.
"""

from loadmaster.models.kind import Export, Kind, Limit, Number

KIND = Kind(
    name="buckets",
    question="which gradients of the backward pass go together in one message?",
    documents="buckets.documents",
    validate="buckets.documents:check_problem",
    check="buckets.checker:check_plan",
    plan="buckets.planner:plan_buckets",
    methods=("auto", "one"),
    limit=Limit(
        name="messages",
        plural="messages",
        field="messages",
        unit="messages",
        whole="buckets.limits:whole",
        whole_words="a message for every gradient",
        points="buckets.limits:points",
    ),
    views="buckets.views",
    exports=(
        Export(
            name="html",
            help="a report that opens offline",
            media_type="text/html",
            write="buckets.views:html",
            suffix=".html",
        ),
        Export(
            name="csv",
            help="a row for every message",
            media_type="text/csv",
            write="buckets.views:csv",
            suffix=".csv",
            hint="times in us",
        ),
        Export(
            name="ranks",
            help="a file for each rank",
            media_type="text/plain",
            write="buckets.views:ranks",
            numbers=(Number("world", 2, "how many ranks there are", most=1024),),
        ),
    ),
    new="buckets.new",
)
