-- Goes before BullMQ's moveToDelayed; see beforeMoveToFinished.
do
--- @include "revive"
    if redis.call("EXISTS", KEYS[5] .. ":lock") == 0 then
        spRevive(KEYS[5], KEYS[2], ARGV[3], ARGV[4], 5000)
    end
end
