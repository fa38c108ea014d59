-- Goes before BullMQ's moveToFinished: a run that outlived its lock while Redis was frozen may still be ended.
do
--- @include "revive"
    if redis.call("EXISTS", KEYS[12] .. ":lock") == 0 then
        spRevive(KEYS[12], KEYS[2], ARGV[1], cmsgpack.unpack(ARGV[8])["token"], 5000)
    end
end
